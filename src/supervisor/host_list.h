/* supervisor/host_list.h - host lists, from a host file or the output of --discover: one host per
 * line, with its slots and its rack.  Pure but for reading the file. */
#ifndef SUPERVISOR_HOST_LIST_H
#define SUPERVISOR_HOST_LIST_H

#include "evenkeel/err.h"

#include "supervisor/protocol.h"

#include <stdint.h>

enum { EK_HOST_NAME_CAP = 256, EK_RACK_NAME_CAP = 64 };

typedef struct {
    char name[EK_HOST_NAME_CAP];
    char rack[EK_RACK_NAME_CAP]; /* "": not given */
    int64_t slots;
    int has_slots; /* 0: the list does not say them, and they are 1 until ek_host_list_fill */
} ek_host;

typedef struct {
    ek_host *host; /* [n] */
    int n;
} ek_host_list;

/* Parses a host file, or text in its format, which is modified.  EK_ENOENT, EK_EFORMAT: the message
 * names the file (or `what`) and the line. */
EK_CHECKED ek_status ek_host_list_read(const char *path, ek_host_list *out);
EK_CHECKED ek_status ek_host_list_parse(const char *what, char *text, ek_host_list *out);
/* The slots of each host for so many ranks (0: any number) where the list says those of none: an
 * even share of the ranks, if the hosts divide them; else 1. */
int64_t ek_host_list_even_slots(const ek_host_list *h, int64_t ranks);
/* Sets those that the list does not say. */
void ek_host_list_fill(ek_host_list *h, int64_t slots);
/* Reads a host file and fills it for so many ranks. */
EK_CHECKED ek_status ek_host_list_read_for(const char *path, int64_t ranks, ek_host_list *out);
void ek_host_list_free(ek_host_list *h);
EK_CHECKED ek_status ek_host_list_copy(const ek_host_list *h, ek_host_list *out);

int64_t ek_host_list_slots(const ek_host_list *h);
/* "a:2,b:1", to be freed by the caller. */
EK_CHECKED ek_status ek_host_list_text(const ek_host_list *h, char **list);

/* The slots and racks of the hosts, *racks [h->n], to be freed by the caller; a host without a rack
 * is a rack of its own.  NULL: no host has a rack. */
EK_CHECKED ek_status ek_host_list_racks(const ek_host_list *h, ek_rack_slots **racks);

/* The entry of the list that a rank is on: entries are filled in order, the last one has the rest.
 */
int ek_host_list_entry(const ek_host_list *h, int64_t rank);

/* The hosts of so many ranks, as numbers, and their racks; *racks NULL: no host has a rack. Entries
 * with one name are one host.  The caller frees both, also after a failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_host_list_places(const ek_host_list *h, int ranks, int **hosts,
                                         int **racks);

#endif
