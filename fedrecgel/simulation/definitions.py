"""What the numbers of ``result.json`` mean, and with whose numbers they may be compared.

The long form, with formulas, is docs/explanation/metrics.md.
"""

__all__ = ["COMPARABLE", "DEFINITIONS"]

DEFINITIONS = {
    "sampled": "the held-out item among at most 99 items the user never interacted with; "
    "comparable with published tables, not with the full ranking",
    "full": "the held-out item among all items but the user's other interactions before it",
    "weighting": "every evaluated user counts once; se is the standard error over users",
    "ties": "the rank is uniform over the tied places; metrics are expectations",
    "one_positive": "with one held-out item recall@k = hr@k, precision@k = hr@k / k, map@k = mrr@k",
    "several": "present where users have several held-out items: all metrics over all of them; the "
    "ideal list has min(items, k) hits, for ndcg and map. Everything else is then about the next "
    "(earliest) held-out item, with the user's others left out of ranking and lists",
    "intervals": "95 % percentile bootstrap over users; the spread between seeds is not in it",
    "difference": "model minus popularity on the same users; low and high as intervals; effect is "
    "the mean over the standard deviation of the users' differences",
    "model": "shared parameters of the chosen round with each user's private parameters as that "
    "round found them; users never trained keep their initial ones, and users.trained_only is "
    "without these users",
    "groups": "head, middle, tail: items holding the first, second and last third of train "
    "interactions, most popular first; cold: items with none; least, medium, most: thirds of users "
    "by train interactions",
    "coverage": "share of all items that stand in at least one user's list of ten",
    "novelty": "mean over listed items of log2(users / users who know the item), in bits",
    "gini": "how unevenly list places fall on all items: 0 evenly, 1 all on one item",
    "overlap": "mean number of items, of ten, that two users' lists share; lists leave out what "
    "the user has interacted with and break ties by item index (no expectation here)",
}

COMPARABLE = {
    "sampled hr@k, ndcg@k": "papers that hold out the last item and draw 99 negatives: NCF "
    "(2017), FedNCF, PFedRec (2023), FedRAP and GPFedRec (2024), FedRecGEL (2026); exactly only on "
    "the same filtering and split (--protocol paper for FedRecGEL), and ties are broken in other "
    "ways there",
    "full hr@k, ndcg@k": "leave-one-out papers that rank the whole catalogue with known items "
    "masked, such as BERT4Rec replications; never with sampled numbers",
    "mrr@k": "as hr@k of the same ranking; papers' MRR without @k is not cut off and is higher",
    "recall@k, precision@k, map@k, ndcg@k of several": "papers that hold out a share or a "
    "period of each user's items and rank the catalogue, such as NGCF and LightGCN (recall@20, "
    "ndcg@20), on the same split; not with leave-one-out numbers",
    "coverage, novelty, gini": "only with lists of ten of the same data and split; papers define "
    "them differently",
}
