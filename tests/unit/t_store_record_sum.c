/* Checksums of records: of the bytes, and of what they are the record of. */
#include "ek_test.h"
#include "store/record_sum.h"

static void sums_depend_on_what_a_record_is(void)
{
    unsigned char data[1000];
    uint64_t sum;

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)(i * i >> 3);
    sum = ek_record_sum(data, sizeof(data), 3, 7, 11);
    CHECK(ek_record_check(data, sizeof(data), 3, 7, 11, sum, "scratch") == EK_OK);
    CHECK(ek_record_check(data, sizeof(data), 7, 3, 11, sum, "scratch") == EK_ECORRUPT);
    CHECK(ek_record_check(data, sizeof(data), 3, 7, 10, sum, "scratch") == EK_ECORRUPT);
    CHECK(ek_record_check(data, sizeof(data) - 1, 3, 7, 11, sum, "scratch") == EK_ECORRUPT);
    data[999] ^= 1;
    CHECK(ek_record_check(data, sizeof(data), 3, 7, 11, sum, "scratch") == EK_ECORRUPT);
    CHECK(strstr(ek_err_message(), "expert 7 of layer 3") != NULL);
}

static const ek_case cases[] = {EK_CASE(sums_depend_on_what_a_record_is)};

EK_TEST_MAIN(cases)
