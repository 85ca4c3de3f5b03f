/* Commands that the supervisor runs itself. */
#include "supervisor/internal_command.h"

#include "supervisor/cleanup.h"
#include "supervisor/links.h"
#include "supervisor/reserve.h"

#include <stddef.h>
#include <string.h>

int ek_internal_command(int argc, char **argv, int *status)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = {{"reserve", ek_reserve_command},
                    {"links", ek_links_command},
                    {"guard", ek_cleanup_guard_command}};

    for (size_t i = 0; argc > 1 && i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            *status = commands[i].run(argc - 1, argv + 1);
            return 1;
        }
    return 0;
}
