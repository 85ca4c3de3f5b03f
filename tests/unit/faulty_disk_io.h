/* faulty_disk_io.h - a table of the disk queue's system calls (store/disk.h) on the real ones that
 * counts calls and breaks at call number `at`, or at every call from there on:
 *
 *   error > 0   the call fails with this error number
 *   error 0     a transfer is short: it reads 1000 bytes, or writes one block
 *
 * A call of io_uring counts when its result is seen. */
#ifndef FAULTY_DISK_IO_H
#define FAULTY_DISK_IO_H

#include "store/disk.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

enum { FAULTY_SHORT_BYTES = 1000 };

static struct {
    atomic_int calls;
    int at; /* 0: never */
    int from_there_on;
    int error;
    int opened; /* the descriptor of the last open */
} faulty_disk;

static int faulty_disk_hit(void)
{
    int call = atomic_fetch_add(&faulty_disk.calls, 1) + 1;

    return faulty_disk.at > 0 &&
           (call == faulty_disk.at || (faulty_disk.from_there_on && call > faulty_disk.at));
}

/* For calls that move no bytes: whether this one fails. */
static int faulty_disk_fails(void)
{
    if (!faulty_disk_hit() || faulty_disk.error == 0)
        return 0;
    errno = faulty_disk.error;
    return 1;
}

static int faulty_disk_open(const char *path, int flags, mode_t mode)
{
    faulty_disk.opened = faulty_disk_fails() ? -1 : ek_disk_io_system.open(path, flags, mode);
    return faulty_disk.opened;
}

static int faulty_disk_set_direct(int fd, int on)
{
    return faulty_disk_fails() ? -1 : ek_disk_io_system.set_direct(fd, on);
}

static int faulty_disk_allocate(int fd, int64_t bytes)
{
    return faulty_disk_fails() ? faulty_disk.error : ek_disk_io_system.allocate(fd, bytes);
}

/* What a transfer is let to move of these bytes; -1: it fails. */
static ssize_t faulty_disk_bytes(size_t bytes, size_t short_bytes)
{
    if (!faulty_disk_hit())
        return (ssize_t)bytes;
    errno = faulty_disk.error;
    return faulty_disk.error != 0 ? -1 : bytes <= short_bytes ? 0 : (ssize_t)short_bytes;
}

/* Takes back what was read behind `most` bytes: O_DIRECT cannot read so few. */
static ssize_t faulty_disk_shorten(void *data, ssize_t n, ssize_t most)
{
    if (n <= most)
        return n;
    memset((unsigned char *)data + most, 0xee, (size_t)(n - most));
    return most;
}

static ssize_t faulty_disk_pread(int fd, void *data, size_t bytes, off_t offset)
{
    ssize_t most = faulty_disk_bytes(bytes, FAULTY_SHORT_BYTES);

    if (most < 0)
        return -1;
    return faulty_disk_shorten(data, ek_disk_io_system.pread(fd, data, bytes, offset), most);
}

static ssize_t faulty_disk_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    ssize_t most = faulty_disk_bytes(bytes, EK_DISK_ALIGN);

    return most <= 0 ? most : ek_disk_io_system.pwrite(fd, data, (size_t)most, offset);
}

static int faulty_disk_sync(int fd)
{
    return faulty_disk_fails() ? -1 : ek_disk_io_system.sync(fd);
}

static int faulty_disk_close(int fd)
{
    int fails = faulty_disk_fails(), st = ek_disk_io_system.close(fd);

    if (fails)
        errno = faulty_disk.error;
    return fails ? -1 : st;
}

static int faulty_disk_ring_init(unsigned entries, struct io_uring *ring)
{
    return faulty_disk_fails() ? -faulty_disk.error : ek_disk_io_system.ring_init(entries, ring);
}

static int faulty_disk_ring_submit(struct io_uring *ring)
{
    return faulty_disk_fails() ? -faulty_disk.error : ek_disk_io_system.ring_submit(ring);
}

/* What was written stays written. */
static int faulty_disk_ring_result(int write, void *data, size_t bytes, int result)
{
    ssize_t most = faulty_disk_bytes(bytes, FAULTY_SHORT_BYTES);

    if (most < 0)
        return -faulty_disk.error;
    return write && result > most ? (int)most : (int)faulty_disk_shorten(data, result, most);
}

static const ek_disk_io faulty_disk_io = {.open = faulty_disk_open,
                                          .set_direct = faulty_disk_set_direct,
                                          .allocate = faulty_disk_allocate,
                                          .pread = faulty_disk_pread,
                                          .pwrite = faulty_disk_pwrite,
                                          .sync = faulty_disk_sync,
                                          .close = faulty_disk_close,
                                          .ring_init = faulty_disk_ring_init,
                                          .ring_submit = faulty_disk_ring_submit,
                                          .ring_result = faulty_disk_ring_result};

/* The next call is number 1. */
static inline void arm_disk_fault(int at, int error, int from_there_on)
{
    atomic_store(&faulty_disk.calls, 0);
    faulty_disk.at = at;
    faulty_disk.error = error;
    faulty_disk.from_there_on = from_there_on;
}

#endif
