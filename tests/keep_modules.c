/* Linked into programs with MPI when the leak checker runs: modules stay loaded, so that the
 * checker can still name those whose leaks tests/lsan.supp allows. */
int dlclose(void *handle);

__attribute__((visibility("default"))) int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
