"""The groups of bench/predict.py: clusters, models, loads, and the layouts that are measured on each.

A group is what a user chooses among: one cluster, one model, one batch, one load, and layouts (and, with uneven loads, policies).
"""

from nodes import MIXTRAL

# Layouts of 4 ranks: name, words of `simulate` and `train`.  A micro-batch is of all ranks of a pipeline stage; M: a part of the batch.
EVEN = (
    ("dp4", "--zero 0"),
    ("dp4 zero1", "--zero 1"),
    ("dp4 zero3", "--zero 3"),
    ("ep2", "--ep 2 --zero 0"),
    ("ep2 zero1", "--ep 2 --zero 1"),
    ("ep4", "--ep 4 --zero 0"),
    ("ep4 zero1", "--ep 4 --zero 1"),
    ("ep4 half", "--ep 4 --zero 0 --micro-batch M2"),
    ("ep4 degree 2", "--ep 4 --zero 0 --pipeline-degree 2"),
    ("ep4 recompute", "--ep 4 --zero 0 --recompute full"),
    ("tp2 ep2", "--tp 2 --ep 2 --zero 0"),
    ("pp2", "--pp 2 --zero 0 --micro-batch M4"),
    ("pp2 ep2", "--pp 2 --ep 2 --zero 0 --micro-batch M4"),
    ("pp2 ep2 half", "--pp 2 --ep 2 --zero 0 --micro-batch M2"),
    ("pp4", "--pp 4 --zero 0 --micro-batch M8"),
)

UNEVEN = (
    ("dp4 zero1", "--zero 1 --balance off"),
    ("ep2 off", "--ep 2 --zero 0 --balance off"),
    ("ep2 exact", "--ep 2 --zero 0 --balance exact"),
    ("ep4 off", "--ep 4 --zero 0 --balance off"),
    ("ep4 exact", "--ep 4 --zero 0 --balance exact"),
    ("ep4 auto", "--ep 4 --zero 0 --balance auto"),
    ("ep4 prophet", "--ep 4 --zero 0 --balance prophet"),
    ("ep4 exact degree 2", "--ep 4 --zero 0 --balance exact --pipeline-degree 2"),
    ("ep4 off degree 2", "--ep 4 --zero 0 --balance off --pipeline-degree 2"),
    ("ep4 exact recompute", "--ep 4 --zero 0 --balance exact --recompute full"),
    ("tp2 ep2 off", "--tp 2 --ep 2 --zero 0 --balance off"),
    ("pp2 ep2 off", "--pp 2 --ep 2 --zero 0 --micro-batch M4 --balance off"),
    ("pp2 ep2 exact", "--pp 2 --ep 2 --zero 0 --micro-batch M4 --balance exact"),
)


# Layouts of 2 ranks, likewise.
EVEN_OF_2 = (
    ("dp2", "--zero 0"),
    ("dp2 zero1", "--zero 1"),
    ("dp2 zero3", "--zero 3"),
    ("ep2", "--ep 2 --zero 0"),
    ("ep2 zero1", "--ep 2 --zero 1"),
    ("ep2 half", "--ep 2 --zero 0 --micro-batch M2"),
    ("ep2 degree 2", "--ep 2 --zero 0 --pipeline-degree 2"),
    ("ep2 recompute", "--ep 2 --zero 0 --recompute full"),
    ("tp2", "--tp 2 --zero 0"),
    ("tp2 etp2", "--tp 2 --etp 2 --zero 0"),
    ("pp2", "--pp 2 --zero 0 --micro-batch M4"),
    ("pp2 eighth", "--pp 2 --zero 0 --micro-batch M8"),
)

UNEVEN_OF_2 = (
    ("dp2 zero1", "--zero 1 --balance off"),
    ("ep2 off", "--ep 2 --zero 0 --balance off"),
    ("ep2 exact", "--ep 2 --zero 0 --balance exact"),
    ("ep2 auto", "--ep 2 --zero 0 --balance auto"),
    ("ep2 prophet", "--ep 2 --zero 0 --balance prophet"),
    ("ep2 exact half", "--ep 2 --zero 0 --micro-batch M2 --balance exact"),
    ("ep2 exact degree 2", "--ep 2 --zero 0 --balance exact --pipeline-degree 2"),
    ("ep2 off degree 2", "--ep 2 --zero 0 --balance off --pipeline-degree 2"),
    ("ep2 exact recompute", "--ep 2 --zero 0 --balance exact --recompute full"),
    ("tp2 off", "--tp 2 --zero 0 --balance off"),
    ("pp2 off", "--pp 2 --zero 0 --micro-batch M4 --balance off"),
    ("pp2 eighth off", "--pp 2 --zero 0 --micro-batch M8 --balance off"),
)


def model(layers, experts, hidden, ff):
    """The config of a Mixtral."""
    return dict(MIXTRAL, num_hidden_layers=layers, num_local_experts=experts, hidden_size=hidden, intermediate_size=ff,
                num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128)


def group(nodes, ppn, mbit, config, batch, seq, layouts, load=None, change=0.5, cores=None):
    """change: factor on the bandwidth of the what-if; cores: of all nodes together (None: --cores).  Layouts that need more layers than there are, are left out."""
    layouts = tuple(l for l in layouts if l[0] != "pp4" or config[0] >= 4)
    return {"nodes": nodes, "ppn": ppn, "mbit": mbit, "model": model(*config), "batch": batch, "seq": seq, "layouts": layouts, "load": load,
            "change": change, "cores": cores}


GROUPS = {
    "4x1 400": group(4, 1, 400, (4, 8, 256, 256), 16, 128, EVEN),
    "2x2 400": group(2, 2, 400, (4, 8, 256, 256), 16, 128, EVEN),
    "4x1 300": group(4, 1, 300, (2, 8, 256, 384), 16, 192, EVEN, change=0.5),
    "2x2 300": group(2, 2, 300, (2, 8, 256, 384), 16, 192, EVEN, change=2),
    "4x1 500 trace": group(4, 1, 500, (2, 32, 256, 128), 16, 192, UNEVEN, "trace", change=0.5),
    "2x2 500 W2": group(2, 2, 500, (2, 8, 256, 384), 16, 192, UNEVEN, "W2", change=0.5),
    "4x1 800": group(4, 1, 800, (2, 16, 256, 256), 16, 192, EVEN, change=0.5),
    "2x2 800 trace": group(2, 2, 800, (2, 32, 256, 128), 16, 192, UNEVEN, "trace", change=0.5),
    "4x1 150 W5": group(4, 1, 150, (2, 8, 256, 256), 16, 128, UNEVEN, "W5", change=2),
    "2x2 150": group(2, 2, 150, (2, 8, 256, 128), 16, 128, EVEN, change=2),
    "2x2 600 trace": group(2, 2, 600, (2, 32, 256, 192), 16, 160, UNEVEN, "trace"),
    "2x2 400 W5": group(2, 2, 400, (2, 8, 256, 384), 16, 128, UNEVEN, "W5", change=2),
    "4x1 250 W2": group(4, 1, 250, (2, 8, 256, 256), 16, 128, UNEVEN, "W2", change=2),
    "2x2 250": group(2, 2, 250, (2, 16, 256, 192), 16, 128, EVEN, change=2, cores=1.8),
    "4x1 600": group(4, 1, 600, (2, 8, 256, 512), 16, 128, EVEN),
    "2x2 1000 W1": group(2, 2, 1000, (2, 8, 384, 384), 16, 128, UNEVEN, "W1"),
    "4x1 400 trace": group(4, 1, 400, (2, 32, 256, 192), 16, 128, UNEVEN, "trace", cores=1.8),
    "4x1 700 trace": group(4, 1, 700, (2, 32, 256, 256), 16, 160, UNEVEN, "trace", cores=1.8),
    "2x2 450": group(2, 2, 450, (2, 8, 256, 320), 16, 160, EVEN, change=0.5),
    "4x1 350": group(4, 1, 350, (2, 8, 256, 320), 16, 160, EVEN, change=2),
    "2x2 350 trace": group(2, 2, 350, (2, 32, 256, 160), 16, 128, UNEVEN, "trace"),
    "4x1 200 W1": group(4, 1, 200, (2, 8, 256, 256), 16, 96, UNEVEN, "W1", change=2),
    "2x2 700 W2": group(2, 2, 700, (2, 16, 256, 256), 16, 160, UNEVEN, "W2", cores=1.8),
    "4x1 500 W5": group(4, 1, 500, (2, 16, 256, 192), 16, 160, UNEVEN, "W5"),
    "2x2 200": group(2, 2, 200, (2, 16, 256, 128), 16, 96, EVEN, change=2),
    "4x1 900 trace": group(4, 1, 900, (2, 32, 256, 192), 16, 192, UNEVEN, "trace", cores=1.7),
    "4x1 450": group(4, 1, 450, (2, 16, 256, 192), 16, 160, EVEN),
    "2x2 900 trace": group(2, 2, 900, (2, 32, 256, 256), 16, 128, UNEVEN, "trace"),
    "2x2 550 W1": group(2, 2, 550, (2, 16, 256, 192), 16, 160, UNEVEN, "W1"),
    "4x1 650 W2": group(4, 1, 650, (2, 8, 256, 320), 16, 160, UNEVEN, "W2", cores=1.7),
    "2x2 650": group(2, 2, 650, (2, 8, 256, 256), 16, 160, EVEN),
    "4x1 550 trace": group(4, 1, 550, (2, 32, 256, 160), 16, 160, UNEVEN, "trace"),
    "4x1 750 W1": group(4, 1, 750, (2, 16, 256, 256), 16, 160, UNEVEN, "W1"),
    "2x2 850 W5": group(2, 2, 850, (2, 16, 256, 256), 16, 160, UNEVEN, "W5", cores=1.8),
    "2x1 500": group(2, 1, 500, (2, 8, 256, 384), 16, 160, EVEN_OF_2, cores=2),
    "2x1 900": group(2, 1, 900, (2, 8, 256, 256), 16, 160, EVEN_OF_2, cores=2),
    "2x1 700 W2": group(2, 1, 700, (2, 8, 256, 384), 16, 128, UNEVEN_OF_2, "W2", cores=2),
    "2x1 1200 trace": group(2, 1, 1200, (2, 32, 256, 192), 16, 160, UNEVEN_OF_2, "trace", cores=2),
    "4x1 850": group(4, 1, 850, (2, 8, 256, 384), 16, 128, EVEN),
    "4x1 300 W5": group(4, 1, 300, (2, 16, 256, 256), 16, 128, UNEVEN, "W5"),
    "4x1 1000 trace": group(4, 1, 1000, (2, 32, 256, 256), 16, 160, UNEVEN, "trace"),
    "2x1 800": group(2, 1, 800, (2, 8, 256, 320), 16, 160, EVEN_OF_2, cores=2),
    "2x1 600 W1": group(2, 1, 600, (2, 16, 256, 192), 16, 160, UNEVEN_OF_2, "W1", cores=2),
    "2x1 1000 trace": group(2, 1, 1000, (2, 32, 256, 160), 16, 160, UNEVEN_OF_2, "trace", cores=2),
    "4x1 550": group(4, 1, 550, (2, 8, 256, 256), 16, 160, EVEN),
    "4x1 700 W5": group(4, 1, 700, (2, 16, 256, 192), 16, 128, UNEVEN, "W5"),
    "4x1 650 trace": group(4, 1, 650, (2, 32, 256, 128), 16, 160, UNEVEN, "trace"),
    "2x2 750": group(2, 2, 750, (2, 16, 256, 256), 16, 160, EVEN),
    "2x2 500 trace": group(2, 2, 500, (2, 32, 256, 192), 16, 128, UNEVEN, "trace"),
    "2x1 800 trace": group(2, 1, 800, (2, 32, 256, 224), 16, 128, UNEVEN_OF_2, "trace", cores=2),
    "4x1 800 trace": group(4, 1, 800, (2, 32, 256, 192), 16, 128, UNEVEN, "trace"),
    "2x2 700 trace": group(2, 2, 700, (2, 32, 256, 160), 16, 128, UNEVEN, "trace"),
    "2x1 1100": group(2, 1, 1100, (2, 16, 256, 192), 16, 160, EVEN_OF_2, cores=2),
    "2x1 1000 W5": group(2, 1, 1000, (2, 8, 256, 320), 16, 128, UNEVEN_OF_2, "W5", cores=2),
    "4x1 750": group(4, 1, 750, (2, 16, 256, 192), 16, 192, EVEN),
    "4x1 900 W5": group(4, 1, 900, (2, 8, 256, 256), 16, 160, UNEVEN, "W5"),
    "2x2 850": group(2, 2, 850, (2, 8, 256, 256), 16, 192, EVEN),
    "2x1 1300 trace": group(2, 1, 1300, (2, 32, 256, 192), 16, 128, UNEVEN_OF_2, "trace", cores=2),
    "4x1 600 trace": group(4, 1, 600, (2, 32, 256, 160), 16, 160, UNEVEN, "trace"),
    "2x2 1000 trace": group(2, 2, 1000, (2, 32, 256, 224), 16, 128, UNEVEN, "trace"),
    "2x1 650": group(2, 1, 650, (2, 8, 256, 448), 16, 160, EVEN_OF_2, cores=2),
    "2x1 750 W2": group(2, 1, 750, (2, 16, 256, 256), 16, 128, UNEVEN_OF_2, "W2", cores=2),
    "4x1 950": group(4, 1, 950, (2, 8, 256, 320), 16, 160, EVEN),
    "4x1 800 W1": group(4, 1, 800, (2, 16, 256, 224), 16, 160, UNEVEN, "W1"),
    "2x2 950": group(2, 2, 950, (2, 16, 256, 224), 16, 160, EVEN),
    "2x1 900 trace": group(2, 1, 900, (2, 32, 256, 224), 16, 160, UNEVEN_OF_2, "trace", cores=2),
    "4x1 1100 trace": group(4, 1, 1100, (2, 32, 256, 192), 16, 160, UNEVEN, "trace"),
    "2x2 1200 trace": group(2, 2, 1200, (2, 32, 256, 160), 16, 160, UNEVEN, "trace"),
    "2x1 550": group(2, 1, 550, (2, 16, 256, 224), 16, 160, EVEN_OF_2, cores=2),
    "2x1 850 W2": group(2, 1, 850, (2, 8, 256, 320), 16, 160, UNEVEN_OF_2, "W2", cores=2),
    "4x1 500": group(4, 1, 500, (2, 8, 256, 320), 16, 160, EVEN),
    "4x1 600 W1": group(4, 1, 600, (2, 16, 256, 192), 16, 160, UNEVEN, "W1"),
    "2x2 700": group(2, 2, 700, (2, 8, 256, 320), 16, 160, EVEN),
    "2x1 1100 trace": group(2, 1, 1100, (2, 32, 256, 192), 16, 192, UNEVEN_OF_2, "trace", cores=2),
    "4x1 750 trace": group(4, 1, 750, (2, 32, 256, 160), 16, 192, UNEVEN, "trace"),
    "2x2 1100 trace": group(2, 2, 1100, (2, 32, 256, 192), 16, 160, UNEVEN, "trace"),
    "4x1 850 trace": group(4, 1, 850, (2, 32, 256, 192), 16, 160, UNEVEN, "trace"),
    "2x2 900": group(2, 2, 900, (2, 8, 256, 320), 16, 160, EVEN),
    "2x1 1400 trace": group(2, 1, 1400, (2, 32, 256, 224), 16, 160, UNEVEN_OF_2, "trace", cores=2),
    "4x1 700 W1": group(4, 1, 700, (2, 8, 256, 256), 16, 160, UNEVEN, "W1"),
}

# Comparisons of bench/results/predict.md: groups that had never been measured before.  Another one is of groups that are not in GROUPS yet.
COMPARISONS = {
    "first": ("2x2 750", "2x2 500 trace", "4x1 550", "2x1 800", "4x1 650 trace", "2x1 1000 trace", "4x1 700 W5", "2x1 600 W1"),
    "second": ("2x1 1100", "4x1 750", "2x2 850", "2x1 1000 W5", "4x1 900 W5", "2x1 1300 trace", "4x1 600 trace", "2x2 1000 trace"),
    "before-third": ("2x1 650", "4x1 950", "2x1 750 W2", "2x2 950", "2x1 900 trace", "4x1 800 W1", "4x1 1100 trace", "2x2 1200 trace"),
    "third": ("2x1 550", "2x1 1100 trace", "4x1 750 trace", "2x2 1100 trace", "2x2 700", "2x1 850 W2", "4x1 600 W1", "4x1 500"),
    "fourth": ("4x1 850 trace", "2x2 900", "2x1 1400 trace", "4x1 700 W1"),
}
