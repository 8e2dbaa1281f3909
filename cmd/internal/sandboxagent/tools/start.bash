exec 3<&-
set +o history +H
unset HISTFILE MAILCHECK TMOUT
__bivouac_read() {
	local status=$? line text=
	while IFS= read -r line && [ -n "$line" ]; do text+=$line; done
	printf -v text '%b' "$text"
	eval "$text"
	text=
	while IFS= read -r line && [ -n "$line" ]; do text+=$line; done
	printf -v __bivouac_command '%b' "$text"
	return $status
}
__bivouac_done() {
	local status=$?
	eval '{ :; }'
	PROMPT_COMMAND='{ __bivouac_prompt; } 2>/dev/null' PS1= PS2=
	return $status
}
__bivouac_prompt() {
	local status=$? background=${!:--1} line python
	while read -r -t 0; do IFS= read -r -t 0.1 line || break; done
	python=$(type -P python3 || type -P python)
	printf '\e]%s;%s;%s;%s;%s\a' @NONCE@ "$__bivouac_turn" "$status" "$background" "$python" >/dev/tty
}
__bivouac_turn=0
readonly -f __bivouac_read __bivouac_done __bivouac_prompt
__bivouac_done
