/* The table of options of `evenkeel train`, and the settings of the run that it continues. */
#include "train/settings/options.h"

#include "evenkeel/train.h"

#include "base/job_options.h"
#include "base/option_value.h"
#include "store/checkpoint.h"
#include "train/output/folder.h"
#include "train/output/run_file.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define FIELD(member) offsetof(ek_train_config, member)

/* Paths do not affect losses, contents do: the model's config, and fingerprints of data, tokenizer
 * and trace, are compared with those of the checkpoint (train/checkpoint/checkpoint.c). */
static const ek_option options[] = {
    {"model", EK_OPTION_TEXT, .unit = "MODEL", .field = EK_FIELD_TEXT, .offset = FIELD(model),
     .flags = EK_SETTING_PATH,
     .help = "preset (tiny, small, base), Hugging Face config.json, or a folder with a config.json "
             "and optional weights"},
    {"init", EK_OPTION_TEXT, .shown = "random from --seed", .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = FIELD(init), .flags = EK_SETTING_PATH,
     .help = "safetensors file or folder with initial weights"},
    {"data", EK_OPTION_LIST, .unit = "PATH", .required = 1, .field = EK_FIELD_LIST,
     .offset = FIELD(data), .flags = EK_SETTING_PATH,
     .help = "training data: text, .jsonl and .ndjson files (also compressed: .gz, .zst), folders "
             "of them (searched recursively), or .bin token files; with PATH:WEIGHT, sequences are "
             "sampled from the sources in proportion to the weights"},
    {"text-field", EK_OPTION_TEXT, .unit = "KEY", .field = EK_FIELD_TEXT,
     .offset = FIELD(text_field), .flags = EK_SETTING_LOSSES,
     .help = "JSON key that holds the text of a line in .jsonl and .ndjson files"},
    {"document-mask", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(document_mask),
     .flags = EK_SETTING_LOSSES | EK_SETTING_OMIT_0,
     .help = "restrict attention to the document of each token, and exclude the first token of a "
             "document from the loss"},
    {"eval-data", EK_OPTION_LIST, .unit = "PATH", .field = EK_FIELD_LIST,
     .offset = FIELD(eval_data), .flags = EK_SETTING_OMIT_0 | EK_SETTING_PATH,
     .help = "held-out data to evaluate during training: paths as for --data, without weights; the "
             "best checkpoint is kept as OUT/best"},
    {"eval-every", EK_OPTION_INT, .shown = "a twentieth of --steps", .unit = "steps",
     .allowed = "[1,1000000000]", .field = EK_FIELD_INT64, .offset = FIELD(eval_every),
     .flags = EK_SETTING_OMIT_0,
     .help = "interval between evaluations; the last step is always evaluated"},
    {"eval-tokens", EK_OPTION_INT, .unit = "tokens", .allowed = "[0,)", .field = EK_FIELD_INT64,
     .offset = FIELD(eval_tokens),
     .help = "maximum tokens per evaluation, in evenly spaced windows of --eval-data; 0: no limit"},
    {"patience", EK_OPTION_INT, .unit = "evaluations", .allowed = "[0,1000000000]",
     .field = EK_FIELD_INT64, .offset = FIELD(patience), .flags = EK_SETTING_OMIT_0,
     .help = "stop after this many evaluations without a new best loss; 0: never"},
    {"token-bytes", EK_OPTION_CHOICE, .unit = "bytes", .allowed = "2|4", .field = EK_FIELD_INT,
     .offset = FIELD(token_bytes), .flags = EK_SETTING_LOSSES,
     .help = "token size in .bin files (little endian)"},
    {"tokenizer", EK_OPTION_TEXT, .shown = "the model folder's; bytes for a preset", .unit = "FILE",
     .field = EK_FIELD_TEXT, .offset = FIELD(tokenizer),
     .flags = EK_SETTING_BYTES | EK_SETTING_PATH,
     .help = "\"bytes\", or a Hugging Face tokenizer.json (BPE)"},
    {"batch", EK_OPTION_INT, .shown = "8, or the preset's", .unit = "sequences",
     .allowed = "[1,1000000]", .field = EK_FIELD_INT64, .offset = FIELD(batch),
     .flags = EK_SETTING_LOSSES | EK_SETTING_OMIT_0,
     .help = "global batch size: sequences per step, over all ranks"},
    {"seq", EK_OPTION_INT, .shown = "256, or the preset's", .unit = "tokens",
     .allowed = "[1,10000000]", .field = EK_FIELD_INT64, .offset = FIELD(seq),
     .flags = EK_SETTING_LOSSES | EK_SETTING_OMIT_0, .help = "sequence length"},
    {"micro-batch", EK_OPTION_INT, .shown = "the whole batch, or the preset's", .unit = "sequences",
     .allowed = "[1,1000000]", .field = EK_FIELD_INT64, .offset = FIELD(micro_batch),
     .flags = EK_SETTING_LOSSES | EK_SETTING_OMIT_0,
     .help = "micro-batch size, over all data parallel ranks; gradients are accumulated over the "
             "micro-batches of a step"},
    {"data-order", EK_OPTION_CHOICE, .allowed = "sequential|shuffled", .field = EK_FIELD_TEXT,
     .offset = FIELD(data_order), .flags = EK_SETTING_LOSSES,
     .help = "order in which windows of the token stream are visited"},
    {"steps", EK_OPTION_INT, .shown = "100, or the preset's", .unit = "steps",
     .allowed = "[1,1000000000]", .field = EK_FIELD_INT64, .offset = FIELD(steps),
     .flags = EK_SETTING_OMIT_0, .help = "total number of training steps"},
    {"lr", EK_OPTION_REAL, .allowed = "[0,)", .field = EK_FIELD_REAL, .offset = FIELD(lr),
     .flags = EK_SETTING_LOSSES, .help = "peak learning rate"},
    {"lr-schedule", EK_OPTION_CHOICE, .allowed = "constant|cosine", .field = EK_FIELD_TEXT,
     .offset = FIELD(lr_schedule), .flags = EK_SETTING_LOSSES,
     .help = "learning rate schedule after the warm-up"},
    {"warmup", EK_OPTION_INT, .shown = "1 % of --steps", .unit = "steps",
     .allowed = "[0,1000000000]", .field = EK_FIELD_INT64, .offset = FIELD(warmup),
     .flags = EK_SETTING_LOSSES | EK_SETTING_OMIT_LESS, .help = "length of the linear warm-up"},
    {"min-lr", EK_OPTION_REAL, .shown = "--lr / 10", .allowed = "[0,)", .field = EK_FIELD_REAL,
     .offset = FIELD(min_lr), .flags = EK_SETTING_LOSSES | EK_SETTING_OMIT_LESS,
     .help = "final learning rate of the cosine schedule"},
    {"wd", EK_OPTION_REAL, .allowed = "[0,)", .field = EK_FIELD_REAL, .offset = FIELD(wd),
     .flags = EK_SETTING_LOSSES, .help = "AdamW weight decay, applied to matrices only"},
    {"beta1", EK_OPTION_REAL, .allowed = "[0,1)", .field = EK_FIELD_REAL, .offset = FIELD(beta1),
     .flags = EK_SETTING_LOSSES, .help = "AdamW beta1"},
    {"beta2", EK_OPTION_REAL, .allowed = "[0,1)", .field = EK_FIELD_REAL, .offset = FIELD(beta2),
     .flags = EK_SETTING_LOSSES, .help = "AdamW beta2"},
    {"eps", EK_OPTION_REAL, .allowed = "[0,)", .field = EK_FIELD_REAL, .offset = FIELD(eps),
     .flags = EK_SETTING_LOSSES, .help = "AdamW epsilon"},
    {"clip", EK_OPTION_REAL, .allowed = "[0,)", .field = EK_FIELD_REAL, .offset = FIELD(clip),
     .flags = EK_SETTING_LOSSES,
     .help = "clip the global gradient norm to this value; 0: no clipping"},
    {"aux-coef", EK_OPTION_REAL, .allowed = "[0,)", .field = EK_FIELD_REAL,
     .offset = FIELD(aux_coef), .flags = EK_SETTING_LOSSES,
     .help = "coefficient of the load balancing loss"},
    {"z-coef", EK_OPTION_REAL, .allowed = "[0,)", .field = EK_FIELD_REAL, .offset = FIELD(z_coef),
     .flags = EK_SETTING_LOSSES, .help = "coefficient of the router z-loss"},
    {"capacity-factor", EK_OPTION_REAL, .allowed = "[-1000,1000]", .field = EK_FIELD_REAL,
     .offset = FIELD(capacity_factor), .flags = EK_SETTING_LOSSES,
     .help = "expert capacity as a multiple of an even share, per sequence (the sign is ignored); "
             "assignments over the capacity are dropped; 0: dropless"},
    {"top-k", EK_OPTION_INT, .shown = "the model's", .unit = "experts", .allowed = "[1,1024]",
     .field = EK_FIELD_INT64, .offset = FIELD(top_k),
     .flags = EK_SETTING_LOSSES | EK_SETTING_OMIT_0,
     .help = "experts per token; at most the model's top-k"},
    {"top-k-schedule", EK_OPTION_TEXT, .unit = "STEP:K,...", .field = EK_FIELD_TEXT,
     .offset = FIELD(top_k_schedule), .flags = EK_SETTING_LOSSES,
     .help = "change --top-k at these steps, numbered from 0, such as 1000:4,5000:2"},
    {"capacity-schedule", EK_OPTION_TEXT, .unit = "STEP:F,...", .field = EK_FIELD_TEXT,
     .offset = FIELD(capacity_schedule), .flags = EK_SETTING_LOSSES,
     .help =
         "change --capacity-factor at these steps, numbered from 0, such as 0:1.25,2000:2,8000:0"},
    {"recompute", EK_OPTION_CHOICE, .allowed = "off|attention|full", .field = EK_FIELD_TEXT,
     .offset = FIELD(recompute),
     .help = "activations to recompute in the backward pass instead of storing them"},
    {"dtype", EK_OPTION_CHOICE, .shown = "bf16 with AVX2 or more, else fp32",
     .allowed = "bf16|fp32|fp64", .field = EK_FIELD_TEXT, .offset = FIELD(dtype),
     .flags = EK_SETTING_LOSSES,
     .help = "type of matrix products; master weights and moments are fp32; fp64: everything in "
             "double precision, for verification"},
    {"device", EK_OPTION_CHOICE, .allowed = "cpu|cuda", .field = EK_FIELD_TEXT,
     .offset = FIELD(device), .help = "compute device"},
    {"threads", EK_OPTION_INT, .shown = "the host's cores / its ranks", .unit = "threads",
     .allowed = "[1,1024]", .field = EK_FIELD_INT, .offset = FIELD(threads),
     .flags = EK_SETTING_NOT_KEPT, .help = "compute threads per rank"},
    {"memory-limit", EK_OPTION_SIZE, .unit = "SIZE|auto", .field = EK_FIELD_SIZE,
     .offset = FIELD(memory_limit),
     .help =
         "most memory of each process, page cache of its files included: 8G, 512M, 1.5GiB; "
         "auto: what its cgroups allow, else what is free. A run that needs more does not start"},
    {"offload", EK_OPTION_CHOICE, .allowed = "experts|off", .field = EK_FIELD_TEXT,
     .offset = FIELD(offload),
     .help = "experts: keep the masters and moments of experts in a scratch file, and as many of "
             "them in memory as --memory-limit leaves room for; losses are the same"},
    {"offload-dir", EK_OPTION_TEXT, .shown = "the folder that --out is in", .unit = "DIR",
     .field = EK_FIELD_TEXT, .offset = FIELD(offload_dir), .flags = EK_SETTING_PATH,
     .help = "--offload: folder of each rank's scratch file, on a fast local disk with room for 12 "
             "bytes a parameter, 16 with gradients; the file has no name, and is gone when the run "
             "ends"},
    {"offload-gradients", EK_OPTION_CHOICE, .allowed = "auto|memory|disk", .field = EK_FIELD_TEXT,
     .offset = FIELD(offload_gradients),
     .help = "--offload: where the gradients of experts are, 4 bytes a parameter; disk: read and "
             "written by each micro-batch; auto: memory if they fit there"},
    EK_JOB_OPTIONS,
    {"layout", EK_OPTION_CHOICE, .fallback = "given", .allowed = "given|auto|pool",
     .help =
         "auto: search the layout (pp, pp-chunks, tp, ep, etp, zero, micro-batch, recompute) "
         "with the shortest step on --cluster, as evenkeel search does; --micro-batch restricts "
         "it; with --elastic, of layouts that survive the loss of any host; given: by its own "
         "options, also beside --layout-pool; pool: from --layout-pool, as without this option"},
    {"layout-pool", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT,
     .offset = FIELD(layout_pool), .flags = EK_SETTING_PATH,
     .help = "take the first layout of a file of evenkeel search --pool that has the given "
             "--micro-batch, if one is given, and with --elastic survives the loss of any host"},
    {"layout-every", EK_OPTION_INT, .unit = "steps", .allowed = "[0,1000000000]",
     .field = EK_FIELD_INT64, .offset = FIELD(layout_every),
     .help = "simulate the layouts of the pool that have the run's --micro-batch with the present "
             "loads of experts at this interval, and change to another one where that saves twice "
             "what the change costs; with --elastic to those that survive the loss of any host; 0: "
             "never"},
    {"cluster", EK_OPTION_TEXT, .unit = "FILE", .field = EK_FIELD_TEXT, .offset = FIELD(cluster),
     .flags = EK_SETTING_PATH,
     .help = "--layout auto, --layout-every: the cluster to simulate layouts on "
             "(docs/simulate.md; bench costs --cluster-out writes the one that it runs on)"},
    {"pp", EK_OPTION_INT, .unit = "ranks", .allowed = "[1,1000000]", .field = EK_FIELD_INT,
     .offset = FIELD(pp),
     .help =
         "pipeline parallel size; the data parallel size is the number of ranks / (--pp * --tp)"},
    {"pp-chunks", EK_OPTION_INT, .unit = "chunks", .allowed = "[1,1024]", .field = EK_FIELD_INT,
     .offset = FIELD(chunks),
     .help = "virtual stages per pipeline stage; 1: 1F1B schedule, more: interleaved 1F1B"},
    {"pp-layers", EK_OPTION_TEXT, .unit = "N,N,...", .field = EK_FIELD_TEXT,
     .offset = FIELD(pp_layers),
     .help =
         "layers of each pipeline stage, such as 6,2 (with --pp-chunks of each virtual stage, in "
         "the model's order); even: equal numbers; auto: so that the busiest of these stages has "
         "the fewest FLOPs, the head counting for the last one; measured: so that it takes the "
         "least time by its FLOPs and the speed of its slowest rank, which is measured at each "
         "start"},
    {"batch-shares", EK_OPTION_TEXT, .unit = "N,N,...", .field = EK_FIELD_TEXT,
     .offset = FIELD(batch_shares),
     .help =
         "how data parallel ranks share the sequences of a micro-batch: even; a list of relative "
         "shares, one for each of them, such as 2,2,1; measured: in proportion to the speeds of "
         "--rank-speeds, with memory for 1.5 times an even share, rounded up to sequences"},
    {"tp", EK_OPTION_INT, .unit = "ranks", .allowed = "[1,1000000]", .field = EK_FIELD_INT,
     .offset = FIELD(tp),
     .help = "tensor parallel size, for attention, embeddings and cross entropy"},
    {"ep", EK_OPTION_INT, .unit = "ranks", .allowed = "[1,1000000]", .field = EK_FIELD_INT,
     .offset = FIELD(ep),
     .help = "expert parallel size: ranks over which the experts of a layer are distributed; "
             "independent of --tp"},
    {"etp", EK_OPTION_INT, .unit = "ranks", .allowed = "[1,1000000]", .field = EK_FIELD_INT,
     .offset = FIELD(etp),
     .help = "expert tensor parallel size: ranks over which each expert is sliced"},
    {"adaptive-r", EK_OPTION_TEXT, .field = EK_FIELD_TEXT, .offset = FIELD(adaptive_r),
     .help =
         "Tutel's r, the number of --etp ranks that each row is sent to: a divisor of --etp, "
         "the weight slices of the others being gathered; 0: rows stay local and all experts "
         "are gathered; auto: tuned during training (without 0 if --balance keeps state in spare "
         "slots)"},
    {"zero", EK_OPTION_CHOICE, .allowed = "0|1|2|3", .field = EK_FIELD_INT, .offset = FIELD(zero),
     .help = "ZeRO stage over the data parallel ranks: 1: shard optimizer state, 2: also "
             "gradients, 3: also weights. With --elastic on several hosts each shard has a copy "
             "on another host"},
    {"embed-columns", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(embed_columns),
     .help = "shard the embedding by columns over the data parallel ranks instead of replicating "
             "it. With --elastic on several hosts each shard has a copy on another host"},
    {"pipeline-degree", EK_OPTION_CHOICE, .allowed = "1|2|4|8|auto", .field = EK_FIELD_INT,
     .offset = FIELD(pipeline_degree),
     .help = "chunks into which the rows of a MoE layer are split to overlap all-to-all with "
             "compute; auto: tuned during training (with --offload experts: 1)"},
    {"smart-groups", EK_OPTION_INT, .unit = "ranks", .allowed = "[0,1000000]",
     .field = EK_FIELD_INT, .offset = FIELD(smart_group),
     .help = "FasterMoE's schedule instead of --pipeline-degree: exchange rows between groups of "
             "this many ranks; 0: off"},
    {"a2a", EK_OPTION_CHOICE, .allowed = "linear|pairwise|2dh|auto", .field = EK_FIELD_TEXT,
     .offset = FIELD(a2a),
     .help = "all-to-all algorithm of MoE layers; auto: by topology and message size at first, "
             "then tuned during training"},
    {"balance", EK_OPTION_CHOICE,
     .allowed = "off|shadow|place|prophet|replicate|exact|auto|fastermoe|eplb",
     .field = EK_FIELD_TEXT, .offset = FIELD(balance),
     .help = "expert load balancing policy. Transient replicas, for one micro-batch: shadow "
             "(FasterMoE, Algorithm 1), fastermoe (FasterMoE as released, for comparison), prophet "
             "(Pro-Prophet), exact (from the counts after the gate). Persistent placement, "
             "optimizer state moves: place (SmartMoE), replicate (Lazarus), eplb (DeepSeek). auto: "
             "both, where the predicted gain exceeds the cost"},
    {"recalibrate", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(recalibrate),
     .help = "measure this machine's compute and communication costs again, even if cached from an "
             "earlier run"},
    {"plan-every", EK_OPTION_INT, .unit = "steps", .allowed = "[0,1000000000]",
     .field = EK_FIELD_INT64, .offset = FIELD(plan_every),
     .help = "place, replicate, eplb, auto: interval between changes of the persistent placement, "
             "after a first one after the first step; 0: never"},
    {"rank-speeds", EK_OPTION_CHOICE, .allowed = "measured|equal", .field = EK_FIELD_TEXT,
     .offset = FIELD(rank_speeds),
     .help =
         "measured: plans heed how fast expert ranks are, by the times of their products, where "
         "they differ by an eighth and more"},
    {"replicas-min", EK_OPTION_INT,
     .shown = "1; with --elastic on several hosts, --ep and --balance auto 2, where memory allows, "
              "and if --elastic is a default where a step takes at most 5 % longer",
     .unit = "hosts", .allowed = "[1,1000000]", .field = EK_FIELD_INT,
     .offset = FIELD(replicas_min), .flags = EK_SETTING_OMIT_0,
     .help = "replicate, auto: minimum number of hosts (racks, if --hosts names several) that hold "
             "each expert, as far as hosts and slots allow; with 2 or more, auto places persistent "
             "replicas like replicate, and transient ones in one slot per rank if the others "
             "suffice for that many copies of each expert"},
    {"prefer", EK_OPTION_CHOICE, .allowed = "speed|survival", .field = EK_FIELD_TEXT,
     .offset = FIELD(prefer),
     .help = "replicate, auto with --replicas-min of 2 or more: place replicas for speed (survives "
             "the loss of any --replicas-min - 1 hosts) or so that most losses of more hosts are "
             "survived, even where a rank then has more than 5 % more load"},
    {"spare-slots", EK_OPTION_INT,
     .shown = "1; with --elastic on several hosts what --replicas-min needs, where memory allows",
     .unit = "slots", .allowed = "[0,1024]", .field = EK_FIELD_INT, .offset = FIELD(spare_slots),
     .flags = EK_SETTING_OMIT_LESS,
     .help = "replica slots per rank, beyond its share of the experts"},
    {"force-balance", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(force_balance),
     .flags = EK_SETTING_LOSSES,
     .help = "replace the gate by one that distributes tokens evenly over the experts (for "
             "measurements)"},
    {"replay-routing", EK_OPTION_TEXT, .unit = "FILE.npy", .field = EK_FIELD_TEXT,
     .offset = FIELD(replay_routing), .flags = EK_SETTING_LOSSES | EK_SETTING_PATH,
     .help = "replace the gate by one that reproduces the expert loads of a routing trace with the "
             "same number of experts, scaled to the tokens of a step (for measurements)"},
    {"reroute", EK_OPTION_CHOICE, .allowed = "off|topology|swipe", .field = EK_FIELD_TEXT,
     .offset = FIELD(reroute), .flags = EK_SETTING_LOSSES,
     .help = "CHANGES THE MODEL: send tokens over a limit to experts other than the gate's; "
             "topology: experts on the same node, so LOSSES DEPEND ON THE LAYOUT; swipe: experts "
             "with free capacity, per sequence"},
    {"reroute-limit", EK_OPTION_REAL, .allowed = "[0,1]", .field = EK_FIELD_REAL,
     .offset = FIELD(reroute_limit), .flags = EK_SETTING_LOSSES,
     .help = "--reroute topology: fraction of a sequence's assignments that may leave their node"},
    {"watchdog", EK_OPTION_REAL, .unit = "seconds", .allowed = "[0,)", .field = EK_FIELD_REAL,
     .offset = FIELD(watchdog),
     .help = "fail if ranks wait for each other longer than this; 0: never"},
    {"seed", EK_OPTION_UINT, .field = EK_FIELD_UINT64, .offset = FIELD(seed),
     .flags = EK_SETTING_LOSSES, .help = "seed of weight initialisation, data order and noise"},
    {"out", EK_OPTION_TEXT, .shown = "run; where there are runs, the next of run-2, run-3, ...",
     .unit = "DIR", .field = EK_FIELD_TEXT, .offset = FIELD(out), .flags = EK_SETTING_NOT_KEPT,
     .help = "output folder: run.json, metrics.jsonl, checkpoint/, best, evaluation.json, "
             "timeline.json (one per rank), routing.npy, plans.jsonl (one per pipeline stage), "
             "generations.jsonl"},
    {"timeline", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(timeline),
     .help = "write timeline.json (Perfetto, chrome://tracing) for --timeline-steps steps; with "
             "costs measured for --balance, also compare predicted and measured op times"},
    {"timeline-from", EK_OPTION_INT, .shown = "the first step of this start", .unit = "step",
     .allowed = "[0,1000000000]", .field = EK_FIELD_INT64, .offset = FIELD(timeline_from),
     .flags = EK_SETTING_OMIT_LESS,
     .help = "--timeline: first step to record, numbered as in metrics.jsonl"},
    {"timeline-steps", EK_OPTION_INT, .unit = "steps", .allowed = "[1,1000000]",
     .field = EK_FIELD_INT64, .offset = FIELD(timeline_steps),
     .help = "--timeline: number of steps to record"},
    {"record-routing", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(record_routing),
     .help = "write routing.npy: expert loads of every step and layer"},
    {"record-plans", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(record_plans),
     .help = "write plans.jsonl: the plan of every step, layer and micro-batch (placement, reason, "
             "row assignment)"},
    {"save-every", EK_OPTION_EVERY, .unit = "N|TIME|auto", .allowed = "[0,1000000000]",
     .field = EK_FIELD_EVERY, .offset = FIELD(save_every), .seconds_offset = FIELD(save_seconds),
     .help =
         "checkpoint interval: N steps, or a time (90s, 10m, 2h); 0: only at the end; auto: with "
         "--elastic by the measured cost of a save and the rate at which state is lost, else "
         "only at the end"},
    {"host-mtbf", EK_OPTION_REAL, .unit = "hours", .allowed = "(0,)", .field = EK_FIELD_REAL,
     .offset = FIELD(host_mtbf),
     .help = "--save-every auto: mean time after which a host is lost, as long as the run has not "
             "seen otherwise; also for whether copies on other hosts pay"},
    {"keep", EK_OPTION_INT, .allowed = "[1,1000000]", .field = EK_FIELD_INT64,
     .offset = FIELD(keep), .help = "number of checkpoints to keep"},
    {"resume", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(resume),
     .flags = EK_SETTING_NOT_KEPT,
     .help = "continue from the newest complete checkpoint in --out with the settings of that run, "
             "which need not be repeated (without --out: the last of run, run-2, ...)"},
    {"override", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(override),
     .flags = EK_SETTING_NOT_KEPT,
     .help = "--resume, --elastic: accept changed settings that affect the losses"},
    {"overwrite", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(overwrite),
     .flags = EK_SETTING_NOT_KEPT,
     .help =
         "replace the run in --out; its checkpoints are deleted when the new run has saved one"},
    {"elastic", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(elastic),
     .flags = EK_SETTING_NOT_KEPT, /* by the command, if it was given */
     .shown = "on where --hosts names several hosts, unless an option does not go with it",
     .help =
         "supervise the workers: when workers or hosts fail or hang, continue from state in "
         "shared memory on the hosts that respond, and add hosts that join (--hosts is re-read "
         "periodically); --ep is then a minimum. Lost experts are restored from the last "
         "checkpoint (--save-every) unless another host has them (--replicas-min). Also continues "
         "after the command itself was killed"},
    {"discover", EK_OPTION_TEXT, .unit = "COMMAND",
     .help = "--elastic: shell command that prints the available hosts in the format of --hosts; "
             "run every few seconds"},
    {"dry-run", EK_OPTION_FLAG, .field = EK_FIELD_INT, .offset = FIELD(dry_run),
     .flags = EK_SETTING_NOT_KEPT,
     .help = "validate everything up to the first step and print layout, memory per rank, tokens "
             "and checkpoints; starts no ranks and writes only the cache of tokenised texts"},
    {"quiet", EK_OPTION_FLAG, .help = "no progress output; warnings and errors are still printed"},
    {"json", EK_OPTION_FLAG, .help = "print the summary as JSON on stdout"},
};

/* --- the run that continues ------------------------------------------------------------------- */

/* Without run.json, --resume needs at least a checkpoint (early versions wrote no settings). */
static ek_status check_run_there(const char *out)
{
    ek_path checkpoint;

    return ek_checkpoint_newest(out, &checkpoint) < 0 ? ek_out_no_checkpoint(out) : EK_OK;
}

/* Refuses stored options that run commands: the folder may come from elsewhere. */
static ek_status check_commands(const ek_options *given, const json_t *settings, const char *from)
{
    static const char *const names[] = {"discover", "mpiexec-args"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = json_string_value(json_object_get(settings, names[i]));

        EK_REQUIRE(text == NULL || ek_options_given(given, names[i]), EK_EINVAL,
                   "%s has --%s \"%s\", but options that run commands are not taken from the "
                   "folder of a run: give --%s again",
                   from, names[i], text, names[i]);
    }
    return EK_OK;
}

/* Options that a layout of a pool decides. */
static const char *const chosen[] = {"pp", "pp-chunks", "tp", "ep", "etp", "zero", "recompute"};

enum { CHOSEN = sizeof(chosen) / sizeof(chosen[0]) };

static int is_layout(const ek_options *given, const char *word)
{
    const char *layout = ek_options_text(given, "layout");

    return layout != NULL && strcmp(layout, word) == 0;
}

/* Refuses such an option beside a choice of the layout. */
static ek_status check_chosen(const ek_options *given)
{
    int is_auto = is_layout(given, "auto");
    int chooses = is_auto || is_layout(given, "pool") ||
                  (!is_layout(given, "given") && ek_options_given(given, "layout-pool"));

    for (int i = 0; chooses && i < CHOSEN; i++)
        EK_REQUIRE(!ek_options_given(given, chosen[i]), EK_EINVAL,
                   "--%s chooses --%s: leave one of them out (of evenkeel search, --fix restricts "
                   "what is in a pool)",
                   is_auto ? "layout auto" : "layout-pool", chosen[i]);
    EK_REQUIRE(!is_auto || !ek_options_given(given, "layout-pool"), EK_EINVAL,
               "--layout auto and --layout-pool: give one of them");
    return EK_OK;
}

/* What is given replaces a stored choice of the layout. */
static void drop_choice(const ek_options *given, json_t *settings)
{
    int is_laid_out = 0;

    for (int i = 0; i < CHOSEN; i++)
        is_laid_out |= ek_options_given(given, chosen[i]);
    if (is_laid_out || ek_options_given(given, "layout-pool"))
        json_object_del(settings, "layout");
    if (is_laid_out || (ek_options_given(given, "layout") && !is_layout(given, "pool")))
        json_object_del(settings, "layout-pool");
    if (is_laid_out)
        json_object_del(settings, "layout-every");
}

/* Default of --out, and the stored settings of the run that continues there. */
static ek_status stored_settings(const ek_options *given, json_t **settings, char *from,
                                 size_t from_cap)
{
    /* If any of `layout` is given, stored `sizes` are dropped: they belong to another layout. */
    static const char *const layout[] = {"ranks", "pp", "tp", "ep", "etp"};
    static const char *const sizes[] = {"pp",        "tp",        "ep",         "etp",
                                        "pp-chunks", "pp-layers", "adaptive-r", "batch-shares"};
    int go_on = ek_options_flag(given, "resume") || ek_options_flag(given, "elastic");
    const char *dir = ek_options_text(given, "out");
    int lays_out = 0;
    ek_path out, path;

    EK_TRY(dir != NULL ? ek_path_set(&out, "%s", dir) : ek_out_default(go_on, &out));
    EK_TRY(ek_path_set(&path, "%s", ""));
    if (go_on)
        EK_TRY(ek_run_file_find(out.s, &path));
    if (path.s[0] != '\0')
        EK_TRY(ek_run_file_read(path.s, settings));
    else if (ek_options_flag(given, "resume") && !ek_options_flag(given, "elastic"))
        EK_TRY(check_run_there(out.s));
    if (*settings == NULL)
        *settings = json_object();
    snprintf(from, from_cap, "%s", path.s);
    EK_TRY(check_commands(given, *settings, path.s));
    EK_TRY(check_chosen(given));
    for (size_t i = 0; i < sizeof(layout) / sizeof(layout[0]); i++)
        lays_out |= ek_options_given(given, layout[i]);
    for (size_t i = 0; lays_out && i < sizeof(sizes) / sizeof(sizes[0]); i++)
        json_object_del(*settings, sizes[i]);
    drop_choice(given, *settings);
    EK_REQUIRE(!is_layout(given, "pool") || ek_options_given(given, "layout-pool") ||
                   json_object_get(*settings, "layout-pool") != NULL,
               EK_EINVAL, "--layout pool: give --layout-pool, the file of the pool");
    if (dir == NULL)
        json_object_set_new(*settings, "out", json_string_nocheck(out.s));
    return EK_OK;
}

static const ek_train_config defaults = EK_TRAIN_CONFIG_INIT;

const ek_option_table ek_train_options = {.command = "train",
                                          .summary = "Train a Mixture-of-Experts language model.",
                                          .options = options,
                                          .n_options = sizeof(options) / sizeof(options[0]),
                                          .stored = stored_settings,
                                          .defaults = &defaults};

size_t ek_train_options_pick(const char *names, ek_option *rows)
{
    size_t n = 0;

    for (size_t i = 0; i < ek_train_options.n_options; i++) {
        if (ek_option_choice_index(names, options[i].name) < 0)
            continue;
        rows[n] = options[i];
        if (strcmp(rows[n].name, "dtype") == 0)
            rows[n].shown = "that of the cluster's machine";
        n++;
    }
    return n;
}
