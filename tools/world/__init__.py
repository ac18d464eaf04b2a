"""The demo's small world: its scenes, their captions and their images, all drawn from seeds.

The world itself is data in `tools/world/assets`, which `catalogue` reads into its records. `scenes` makes scenes of
it; `facts` and `grammar` write their captions. `drawing` draws them: `composing` and `placing` say where things are,
`backgrounds` and `skies` what is around them, `sketches` and `shapes` turn a drawing's text into pixels, and
`painting` is the canvas. `draws` makes the random choices.
"""
