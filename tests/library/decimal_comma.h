/* Compiles a locale in which 1.5 is written "1,5" into a folder of the test. */
#ifndef DECIMAL_COMMA_H
#define DECIMAL_COMMA_H

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DECIMAL_COMMA "de_DE.UTF-8"

/* Compiles it into the existing `folder`.  Returns NULL, or the reason why it cannot. */
static inline const char *compile_decimal_comma(const char *folder)
{
    char target[4096];
    int status;
    pid_t child;

    if (access("/usr/share/i18n/locales/de_DE", R_OK) != 0)
        return "no sources of locales (package locales)";
    snprintf(target, sizeof(target), "%s/" DECIMAL_COMMA, folder);
    child = fork();
    if (child == 0) {
        execlp("localedef", "localedef", "-c", "-i", "de_DE", "-f", "UTF-8", target, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
        WEXITSTATUS(status) > 1)
        return "localedef cannot compile " DECIMAL_COMMA;
    return NULL;
}

/* Whether numbers are written with commas now. */
static inline int has_decimal_comma(void)
{
    char text[16];

    snprintf(text, sizeof(text), "%.1f", 1.5);
    return strcmp(text, "1,5") == 0;
}

/* Sets it as the locale of this process. */
static inline int set_decimal_comma(const char *folder)
{
    return setenv("LOCPATH", folder, 1) == 0 && setlocale(LC_ALL, DECIMAL_COMMA) != NULL &&
           has_decimal_comma();
}

#endif
