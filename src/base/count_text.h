/* base/count_text.h - counts, bytes and long times as people read them. */
#ifndef BASE_COUNT_TEXT_H
#define BASE_COUNT_TEXT_H

#include <stddef.h>

/* How many digits after the point give a number from 1 to 999.5 three significant ones, as all
 * scaled numbers have: "30.0" beside "13.9". */
int ek_decimals(double n);

/* "12.3 M", "4.56 G": a count with three significant digits; buf of at least 16 bytes. */
const char *ek_count_text(char *buf, size_t cap, double n);

/* "0.143", "14.3", "15.8 k": a measured, predicted or mean number, likewise; "14": a whole one
 * below 1000, as a count; buf of at least 16 bytes.  n is not negative. */
const char *ek_number_text(char *buf, size_t cap, double n);

/* "12.3 MB", "4.56 GB", "512 B": bytes, likewise. */
const char *ek_bytes_text(char *buf, size_t cap, double bytes);

/* "85.9 GB (80 GiB)": likewise, with what was probably given (80G) if it is a whole number of
 * quarters of a binary unit; buf of at least 32 bytes. */
const char *ek_memory_text(char *buf, size_t cap, double bytes);

/* "2.40 min", "400 h", "42.0 days": likewise three significant digits, seconds below two minutes;
 * buf of at least 32 bytes. */
const char *ek_time_text(char *buf, size_t cap, double seconds);

/* "0:34", "1:23:45": minutes and seconds, or hours with them. */
const char *ek_duration_text(char *buf, size_t cap, double seconds);

#endif
