"""Parts that encoders are composed of: towers, backbones, networks, poolings, activations, sparsifiers."""
