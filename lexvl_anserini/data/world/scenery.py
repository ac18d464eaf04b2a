"""What stands in the places of the demo world and is nobody's subject: hills, trunks, furniture, sky (see `shapes`)."""

from __future__ import annotations

from collections.abc import Mapping

from lexvl_anserini.data.world.draws import Draws


def _scattered(name: str, size: int, count: int, shape: str) -> str:
    """A field of one shape at random places; `{x}`, `{y}` and small offsets `{x+..}` are filled in."""
    draws = Draws("scattered", name)
    lines = []
    for _ in range(count):
        x, y, long = draws.below(size), draws.below(size), draws.below(4)
        lines.append(
            shape.format(
                x=x,
                y=y,
                x2=x - 4 - long,
                y2=y + 26 + 4 * long,
                y3=y - 8 - 2 * long,
                long=6 + 3 * long,
                dot=3 + long // 2,
            )
        )
    return "\n".join((f"{size},{size} plain", *lines))


SCENERY: Mapping[str, str] = {
    # --- sky
    "cloud": """160,70 plain
        oval w 46,44 36,20
        oval w 80,30 36,26
        oval w 116,42 36,20
        oval l 76,54 60,13
        oval l 116,50 30,10""",
    "cloud/2": """180,50 plain
        oval w 50,30 44,14
        oval w 96,22 46,18
        oval w 132,30 40,12
        oval l 86,38 66,9""",
    "sun": """100,100 plain
        oval l 50,50 49,49
        oval c 50,50 36,36""",
    "moon": """100,100 plain
        oval c 50,50 40,40
        oval d 40,40 9,8
        oval d 62,58 10,9
        oval d 58,34 5,5""",
    "crescent": """100,100 plain
        oval c 50,50 40,40
        oval . 68,42 36,36""",
    "stars": _scattered("stars", 400, 46, "oval c {x},{y} {dot},{dot}"),
    "rain": _scattered("rain", 400, 84, "line c 2 {x},{y} {x2},{y2}"),
    "flakes": _scattered("flakes", 400, 80, "oval c {x},{y} {dot},{dot}"),
    "bolt": """60,140
        poly Y 34,0 52,0 36,52 54,52 14,138 26,72 8,72""",
    "rainbow": """240,130 plain
        oval r 120,130 119,128
        oval o 120,130 110,119
        oval Y 120,130 101,110
        oval n 120,130 92,101
        oval B 120,130 83,92
        oval V 120,130 74,83
        oval . 120,130 65,74""",
    # --- land
    "hills": """400,100 plain
        oval c 90,110 150,86
        oval d 320,120 160,96""",
    "hills/2": "400,100 plain\noval d 60,120 120,90\noval c 220,120 150,100\noval d 380,120 110,76",
    "peaks": """400,200 plain
        poly d 190,200 300,30 400,190 400,200
        poly w 300,30 268,80 290,72 304,88 318,70 332,84
        poly c 0,200 0,150 110,8 250,200
        poly l 110,8 120,90 150,200 250,200
        poly w 110,8 72,58 96,54 110,74 126,52 150,62""",
    "peaks/2": """400,200 plain
        poly d 0,120 60,50 170,200 0,200
        poly w 60,50 34,80 58,76 74,92 88,88
        poly c 100,200 230,14 360,200
        poly l 230,14 236,100 280,200 360,200
        poly w 230,14 194,66 218,60 232,82 246,58 266,66
        poly d 310,200 380,90 400,110 400,200""",
    "dunes": """400,90 plain
        oval c 80,110 150,96
        poly l 80,14 110,30 150,110 230,90
        oval d 330,120 170,92
        poly c 330,28 372,44 400,110 440,110""",
    "cactus": """60,110
        line n 13 30,108 30,12
        line n 9 30,66 10,62 10,38
        line n 9 30,54 50,50 50,28
        line u 2 27,100 27,14
        line u 2 34,100 34,14""",
    "trunk": """40,300
        poly b 8,300 12,0 28,0 34,300
        line m 2 16,30 15,120
        line m 2 24,80 25,190
        line m 2 15,170 14,280""",
    "canopy": """400,120 plain
        box u 0,0 400,50
        oval u 30,50 50,30
        oval n 90,48 46,36
        oval u 150,54 46,40
        oval n 214,44 50,34
        oval u 270,54 46,42
        oval n 330,48 46,34
        oval u 384,52 40,36""",
    "fern": """100,60 plain
        line n 5 50,60 20,20
        line n 5 50,60 40,8
        line u 5 50,60 62,10
        line n 5 50,60 82,22""",
    "fir": """70,120
        box b 30,98 40,120
        poly u 35,40 66,102 4,102
        poly u 35,22 60,76 10,76
        poly u 35,2 52,46 18,46""",
    "snowy fir": """70,120
        box b 30,98 40,120
        poly u 35,40 66,102 4,102
        poly w 35,40 50,70 44,66 35,74 26,66 20,70
        poly u 35,22 60,76 10,76
        poly w 35,22 48,50 42,46 35,54 28,46 22,50
        poly u 35,2 52,46 18,46
        poly w 35,2 46,28 35,34 24,28""",
    "fence": """300,50 plain
        box b 0,12 300,18
        box b 0,30 300,36
        box b 20,2 28,50
        box b 90,2 98,50
        box b 160,2 168,50
        box b 230,2 238,50""",
    "pickets": "400,60 plain\nbox w 0,20 400,26\nbox w 0,42 400,48\n"
    + "\n".join(f"poly w {x},60 {x},10 {x + 6},2 {x + 12},10 {x + 12},60" for x in range(4, 400, 22)),
    "silo": """60,150
        box g 8,30 52,150
        oval m 30,30 22,24
        box l 14,34 20,150
        line m 2 8,70 52,70
        line m 2 8,110 52,110""",
    "barn": """160,120
        poly b 6,120 6,56 40,18 120,18 154,56 154,120
        poly m 0,60 38,12 122,12 160,60 152,60 118,22 42,22 8,60
        box w 54,66 106,120
        box b 58,70 102,120
        line w 4 58,70 102,120
        line w 4 102,70 58,120
        box w 68,34 92,52""",
    "hay": """80,50
        oval t 40,28 36,22
        line b 2 14,20 66,20
        line b 2 8,30 72,30
        line b 2 14,40 66,40""",
    "palm": """110,150
        line b 9 62,150 54,90 58,40
        poly n 58,40 20,20 2,44 28,34
        poly n 58,40 30,50 16,84 40,58
        poly u 58,40 90,18 110,40 84,34
        poly u 58,40 86,54 96,86 74,60
        poly n 58,40 54,6 72,2 66,20""",
    "shell": """40,30
        poly p 20,28 2,12 8,4 20,1 32,4 38,12
        line w 2 20,28 12,4
        line w 2 20,28 28,4""",
    "bush": """120,60 plain
        oval n 30,40 30,24
        oval n 66,30 34,28
        oval u 92,42 28,20
        oval n 50,46 40,16""",
    "path": """200,100 plain
        poly t 92,0 104,0 180,100 40,100
        poly l 96,0 100,0 140,100 84,100""",
    "fountain": """120,100
        line B 4 60,70 52,20 34,34 28,60
        line B 4 60,70 68,20 86,34 92,60
        line B 4 60,76 60,8
        box g 54,50 66,84
        oval g 60,84 56,14
        oval B 60,80 48,8""",
    "beds": "400,40 plain\noval b 200,34 198,10\n"
    + "\n".join(
        f"oval n {x},26 9,9\noval {m} {x},18 8,8" for x, m in zip(range(14, 400, 24), "rYpVwro" * 3, strict=False)
    ),
    "skyline": """400,200 plain
        box m 0,60 70,200
        box g 62,20 130,200
        box d 124,80 200,200
        box m 196,40 250,200
        box g 246,100 320,200
        box d 312,10 362,200
        box m 356,70 400,200
        """
    + "\n".join(
        f"box y {x},{y} {x + 9},{y + 12}"
        for left, right, top in (
            (6, 60, 70),
            (70, 122, 30),
            (132, 190, 92),
            (202, 244, 52),
            (254, 306, 112),
            (318, 354, 22),
            (364, 396, 82),
        )
        for x in range(left, right - 6, 17)
        for y in range(top, 190, 24)
        if (x * 7 + y * 3) % 5
    ),
    "road": "400,120 plain\nbox l 0,0 400,14\nbox m 0,14 400,110\nbox l 0,110 400,120\n"
    + "\n".join(f"box w {x},58 {x + 36},64" for x in range(10, 400, 66)),
    # --- water
    "waves": _scattered("waves", 400, 60, "line c 4 {x},{y} {x2},{y}"),
    "specks": _scattered("specks", 400, 150, "oval c {x},{y} {dot},2"),
    "grass": _scattered("grass", 400, 150, "line c 3 {x},{y} {x},{y3}"),
    "crop": "400,60 plain\nbox Y 0,0 400,60\n"
    + "\n".join(f"line t 4 {x},60 {200 + (x - 200) * 7 // 10},0" for x in range(-160, 580, 24)),
    "surf": "400,100 plain\nbox B 0,0 400,74\nline w 3 20,20 90,20\nline w 3 200,30 300,30\nline w 3 100,46 160,46\n"
    + "\n".join(f"oval w {x},76 34,16" for x in range(10, 400, 50)),
    "foam": "400,30 plain\n" + "\n".join(f"oval w {x},18 20,9" for x in range(10, 400, 30)) + "\nbox w 0,18 400,28",
    "ripple": """200,20 plain
        oval c 60,8 56,5
        oval c 140,14 54,4""",
    "reeds": """80,110 plain
        line n 4 20,110 14,20
        line n 4 36,110 38,8
        line n 4 52,110 60,24
        line u 4 62,110 76,46
        line u 4 10,110 2,50
        oval b 14,22 5,13
        oval b 38,14 5,14
        oval b 60,28 5,13""",
    "lily": """80,30 plain
        oval n 40,16 38,13
        poly c 40,16 70,2 78,14
        oval p 34,12 9,7""",
    "quay": "400,110 plain\nbox b 0,0 400,14\nbox m 0,14 400,20\n"
    + "\n".join(f"box b {x},14 {x + 14},110\nbox m {x + 10},14 {x + 14},110" for x in range(10, 400, 64)),
    "crane": """120,180
        line o 7 30,180 40,30
        line o 7 56,180 46,30
        line o 5 32,140 54,110 36,90 50,66
        line o 7 8,44 112,16
        line m 2 100,20 100,80
        box m 92,80 108,94""",
    "warehouse": """160,70
        box m 2,20 158,70
        poly g 2,22 2,4 42,20 42,4 82,20 82,4 122,20 122,4 158,20
        box y 14,36 30,48
        box y 50,36 66,48
        box k 92,36 130,70""",
    # --- rooms
    "tiles": "400,400 plain\n"
    + "\n".join(f"line d 2 0,{y} 400,{y}\nline d 2 {y},0 {y},400" for y in range(20, 400, 40)),
    "stripes": "400,400 plain\n" + "\n".join(f"box d {x},0 {x + 18},400" for x in range(10, 400, 44)),
    "dots": "400,400 plain\n"
    + "\n".join(f"oval d {x + (y // 40) % 2 * 20},{y} 6,6" for y in range(16, 400, 40) for x in range(10, 400, 40)),
    "checks": "400,160 plain\n"
    + "\n".join(
        f"poly d {200 + (x - 200) * near // 10},{top} {200 + (x + 50 - 200) * near // 10},{top} "
        f"{200 + (x + 50 - 200) * wide // 10},{low} {200 + (x - 200) * wide // 10},{low}"
        for row, (top, low, near, wide) in enumerate(((0, 36, 10, 13), (36, 88, 13, 17), (88, 160, 17, 23)))
        for x in range(-200 + row % 2 * 50, 600, 100)
    ),
    "boards": "400,100 plain\n"
    + "\n".join(f"line d 2 0,{y} 400,{y}" for y in (16, 36, 60, 86))
    + "\n"
    + "\n".join(f"line d 2 {x},{y} {x},{y + 20}" for y, x in ((16, 90), (16, 300), (36, 200), (60, 60), (60, 330))),
    "window": """120,110
        box w 0,0 120,110
        box . 8,8 57,52
        box . 63,8 112,52
        box . 8,58 57,102
        box . 63,58 112,102""",
    "curtain": """30,130 plain
        poly c 0,0 30,0 24,60 10,80 6,130 0,130
        line d 2 8,4 6,70
        line d 2 18,4 14,60""",
    "counter": """300,130
        box w 0,10 300,130
        box b 0,0 300,14
        line g 3 75,18 75,130
        line g 3 150,18 150,130
        line g 3 225,18 225,130
        oval m 66,60 4,4
        oval m 84,60 4,4
        box k 160,26 215,120
        box m 168,60 208,108
        oval r 170,40 5,5
        oval r 186,40 5,5
        oval r 202,40 5,5
        box k 158,0 218,6""",
    "cupboard": """140,80
        box w 0,0 140,80
        line g 3 70,0 70,80
        oval m 62,60 4,4
        oval m 78,60 4,4""",
    "fridge": """80,200
        box w 0,0 80,200
        line g 4 0,66 80,66
        line m 5 68,40 68,58
        line m 5 68,78 68,110""",
    "sofa": """260,110
        box c 20,6 240,80
        line d 3 130,8 130,60
        box l 24,52 236,84
        line d 3 130,54 130,82
        oval c 22,60 22,28
        oval c 238,60 22,28
        box c 0,60 44,98
        box c 216,60 260,98
        box d 10,84 250,98
        box k 16,98 26,109
        box k 234,98 244,109""",
    "picture": """110,80
        box b 0,0 110,80
        box a 8,8 102,72
        poly n 8,72 40,34 70,72
        poly u 50,72 76,44 102,66 102,72
        oval Y 84,22 8,8""",
    "rug": """300,60 plain
        oval c 150,30 148,28
        oval d 150,30 118,20
        oval c 150,30 90,13""",
    "shelf": "120,180\nbox b 0,0 120,180\n"
    + "\n".join(
        f"box m 8,{y} 112,{y + 46}\n"
        + "\n".join(f"box {m} {x},{y + 10} {x + 10},{y + 46}" for x, m in zip(range(12, 100, 12), order, strict=False))
        for y, order in ((8, "rBnwtor"), (64, "tgVrBn"), (120, "nworBtg"))
    ),
    "bed": """280,150
        box b 0,0 22,150
        box b 262,50 280,150
        box w 22,66 264,112
        oval w 62,62 38,18
        poly c 96,56 264,62 264,128 96,128
        poly l 96,56 124,56 124,128 96,128
        box d 22,112 264,128
        box b 22,126 264,140""",
}
