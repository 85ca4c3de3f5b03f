# bash completion of evenkeel.  Commands and options are those that the command itself names.
_evenkeel()
{
    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} kinds kind
    local command=${COMP_WORDS[0]/#\~\//$HOME/}
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$command" --help=commands 2>/dev/null)" -- "$cur")
        return
    fi
    kinds=$("$command" "${COMP_WORDS[1]}" --help=options "${COMP_WORDS[@]:2:COMP_CWORD - 2}" 2>/dev/null)
    kind=$(printf '%s\n' "$kinds" | awk -F'\t' -v name="$before" '$1 == name { print $2 }')
    case $kind in
    file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    *"|"*) mapfile -t COMPREPLY < <(compgen -W "${kind//|/ }" -- "$cur") ;;
    value) ;;
    *)
        if [ "${cur#-}" != "$cur" ]; then
            mapfile -t COMPREPLY < <(compgen -W "$(printf '%s\n' "$kinds" | cut -f1)" -- "$cur")
        else
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        fi
        ;;
    esac
}
complete -F _evenkeel evenkeel
