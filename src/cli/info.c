/* evenkeel info: version, CPU features, selected kernels, MPI and CUDA. */
#include "evenkeel/job.h"
#include "evenkeel/version.h"

#include "base/threads.h"
#include "cli/cli.h"
#include "tensor/accelerator.h"
#include "tensor/kernels.h"
#include "tensor/select/select.h"

#include <stdio.h>

static const ek_option_table table = {
    .command = "info", .summary = "Show version, CPU features, selected kernels, MPI and CUDA."};

static void print_kernels(const char *dtype, ek_mode mode)
{
    ek_kernels *k = NULL;

    if (ek_kernels_create(mode, ek_cpu_isa(), ek_cores_usable(), &k) < 0) {
        printf("kernels %s: %s\n", dtype, ek_err_message());
        return;
    }
    printf("kernels %s: %s; matrix products: %s\n", dtype, k->name, k->products);
    ek_kernels_destroy(&k);
}

static void print_cuda(void)
{
    const ek_accelerator *a = ek_accelerator_linked();
    int n = a != NULL ? a->count() : 0;
    char text[320];

    if (a == NULL)
        printf("CUDA: none\n");
    else if (n == 0)
        printf("CUDA: %s; no device, or no driver for it\n", a->name);
    for (int i = 0; i < n; i++)
        printf("CUDA: %s; device %d: %s\n", a->name, i,
               a->describe(i, text, sizeof(text)) == EK_OK ? text : ek_err_message());
}

static ek_status run_info(const ek_options *o)
{
    (void)o;
    printf("evenkeel %s, compiled by %s\n", EK_VERSION, EK_COMPILER);
    printf("CPU: %s; %d core%s usable\n", ek_isa_name(ek_cpu_isa()), ek_cores_usable(),
           ek_cores_usable() == 1 ? "" : "s");
    print_kernels("bf16", EK_MODE_BF16);
    print_kernels("fp32", EK_MODE_FP32);
    print_kernels("fp64", EK_MODE_FP64);
    if (ek_job_launcher()[0] != '\0')
        printf("MPI: %s; started by %s\n", ek_job_library(), ek_job_launcher());
    else
        printf("MPI: none\n");
    print_cuda();
    return EK_OK;
}

int cli_info(int argc, char **argv)
{
    return ek_command_run(&table, argc, argv, run_info);
}
