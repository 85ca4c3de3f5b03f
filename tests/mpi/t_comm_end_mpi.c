/* Ranks of several hosts end although one of them comes late: after the last barrier, and into
 * MPI_Finalize.  One host stands for several: this program has its own gethostname(), and MPICH
 * uses TCP alone.  The ranks send nothing but what joining the job needs: of four, MPICH before 4.2
 * has then connections that are not complete, and hangs if it is finalised (src/comm/mpi/end.c). */
#include "comm/comm.h"
#include "ek_test.h"

#include <dlfcn.h>
#include <mpi.h>
#include <time.h>

#ifdef __SANITIZE_ADDRESS__
/* The network's threads, which MPI_Finalize would end, crash a search for leaks. */
int __lsan_is_turned_off(void);
__attribute__((visibility("default"))) int __lsan_is_turned_off(void)
{
    return 1;
}
#endif

/* In place of others' functions of the same name. */
#define SEEN __attribute__((visibility("default")))

static int is_late; /* the last rank */

static int rank_here(void)
{
    const char *mpich = getenv("PMI_RANK"), *other = getenv("OMPI_COMM_WORLD_RANK");

    return atoi(mpich != NULL ? mpich : other != NULL ? other : "0");
}

SEEN int gethostname(char *name, size_t cap)
{
    snprintf(name, cap, "host%d", rank_here());
    return 0;
}

/* What gethostname() is where _FORTIFY_SOURCE checks it. */
int gethostname_checked(char *name, size_t cap, size_t room) __asm__("__gethostname_chk");

SEEN int gethostname_checked(char *name, size_t cap, size_t room)
{
    (void)room;
    return gethostname(name, cap);
}

static void come_late(void)
{
    struct timespec left = {.tv_nsec = 700000000};

    while (is_late && nanosleep(&left, &left) != 0)
        ;
}

/* Late after the last of the two barriers. */
SEEN int MPI_Barrier(MPI_Comm comm)
{
    static int calls;
    int (*barrier)(MPI_Comm);
    int code;

    *(void **)&barrier = dlsym(RTLD_DEFAULT, "PMPI_Barrier");
    code = barrier(comm);
    if (++calls == 2)
        come_late();
    return code;
}

SEEN int MPI_Finalize(void)
{
    int (*finalise)(void);

    come_late();
    *(void **)&finalise = dlsym(RTLD_DEFAULT, "PMPI_Finalize");
    return finalise();
}

int main(void)
{
    ek_comm *world = NULL;

    alarm(250); /* a hang is a failure */
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("OMPI_MCA_btl", "tcp,self", 1);
    if (ek_comm_open(EK_COMM_MPI, &world) < 0) {
        fprintf(stderr, "%s\n", ek_err_text());
        return 1;
    }
    CHECK(strcmp(ek_comm_host(world, 0), ek_comm_host(world, ek_comm_size(world) - 1)) != 0);
    is_late = ek_comm_rank(world) == ek_comm_size(world) - 1;
    ek_comm_close(&world);
    return ek_t.failed > 0;
}
