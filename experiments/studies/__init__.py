"""The paper's studies on tractable targets, and of time: `python -m experiments.studies NAME`, from the root.

`study.py` says what a study is, runs its queue and keeps its pieces; `targets.py` has what is sampled, with its
truth; `estimates.py` turns islands into errors; `fits.py` fits lines; `page.py` writes what follows from pieces.
`together.py` starts processes that share an island, `network.py` says what that costs elsewhere. Each study is a
module of its own. Public names of isles only, and nothing in isles imports this.
"""
