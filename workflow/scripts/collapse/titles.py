"""What quantities are called over their curves, in figures and in the explorer alike."""

TITLES = {
    ("inner_products", "mass_near_one"): "Mass near one",
    ("inner_products", "mean_inner_product"): "Mean inner product",
    ("inner_products", "mean_inner_product_without_rogue"): "Mean inner product without rogue dimensions",
    ("energy", "energy"): "Interaction energy",
    ("effective_rank", "effective_rank_raw"): "Effective rank, raw states",
    ("effective_rank", "effective_rank_sphere"): "Effective rank, directions",
    ("effective_rank", "effective_rank_centred"): "Effective rank, directions around their mean",
    ("cka", "cka_biased"): "CKA with the layer before, biased",
    ("cka", "cka_debiased"): "CKA with the layer before, debiased",
    ("nn_stability", "nn_stability"): "Nearest-neighbour stability",
    ("clusters", "n_clusters"): "Number of clusters",
    ("clusters", "noise_fraction"): "Noise fraction",
    ("fiedler", "fiedler_symmetric"): "Fiedler value of attention, symmetric",
    ("fiedler", "fiedler_published"): "Fiedler value of attention, as published",
    ("attention_entropy", "entropy"): "Entropy of attention",
}
