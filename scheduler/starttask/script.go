package starttask

import (
	"strconv"
	"strings"

	"bivouac.dev/bivouac/httpapi/decode"
)

// The variables through which a command gets git's credential. exitNoCredential is the script's exit
// code where the agent server has not passed them.
const (
	envGitUser       = "BIVOUAC_GIT_USER"
	envGitPassword   = "BIVOUAC_GIT_PASSWORD" //nolint:gosec // the variable's name
	exitNoCredential = 75
	// exitChanged is that of a setup script that is not the one that was asked about.
	exitChanged = 76
	textChanged = " has changed since it was asked about: it does not run"
)

// What a script says that a project has, each on a line of its own at the end of its output.
const (
	foundSetup    = "bivouac: " + setupFile
	foundGitHooks = "bivouac: " + gitHooksFile
)

// gitJob has the parameters of the script in the sandbox.
type gitJob struct {
	dir, userName, userEmail       string
	remote                         remote
	target, tmp, branch, newBranch string
	// credentialFile is the file with the credential, "" for the environment.
	credentialFile string
	// full: the clone has the whole history.
	full bool
	// sums: the script says the SHA-256 of what the project has.
	sums bool
}

// script returns a POSIX shell script that can be repeated, even while an earlier run of it has
// not ended: the clone appears under its name whole or not at all.
func (j gitJob) script() string {
	var b script
	b.line("set -eu")
	if j.credentialFile != "" {
		b.line("trap", quote("rm -f "+quote(j.credentialFile)), "EXIT")
	} else if j.remote.password != "" {
		b.line(`if [ -z "${`+envGitPassword+`-}" ]; then exit`, strconv.Itoa(exitNoCredential)+"; fi")
	}
	b.line("mkdir -p", quote(j.dir))
	b.line("cd", quote(j.dir))
	b.line("command -v git >/dev/null 2>&1 || { echo 'git is not installed in this sandbox' >&2; exit 69; }")
	b.line("export GIT_TERMINAL_PROMPT=0")
	for _, user := range [][2]string{{"user.name", j.userName}, {"user.email", j.userEmail}} {
		if user[1] != "" {
			// Another conversation of the sandbox may be setting it at this moment.
			set := "git config --global " + user[0] + " " + quote(user[1])
			b.line(set, "|| { sleep 1;", set+"; }")
		}
	}
	if j.remote.clone == "" {
		// A repository around those of other conversations would hide them.
		b.line("if [ ! -e .git ] && ! ls -d ./*/.git >/dev/null 2>&1; then git init --quiet; fi")
		b.reportFound(j.sums)
		return b.String()
	}
	b.line("if [ -e", quote(j.target), "] && [ ! -e", quote(j.target+"/.git"), "]; then echo",
		quote(j.target+" exists and is not a git repository"), ">&2; exit 73; fi")
	b.line("if [ ! -e", quote(j.target), "]; then")
	j.clone(&b)
	b.line("fi")
	b.line("cd", quote(j.target))
	b.reportFound(j.sums)
	return b.String()
}

// clone adds the commands that clone the repository.
func (j gitJob) clone(b *script) {
	tmp := quote(j.tmp) + `".$$"`
	clone := []string{"git", "-c credential.helper="}
	switch {
	case j.credentialFile != "":
		clone = append(clone, "-c", quote("credential.helper=store --file="+quote(j.credentialFile)))
	case j.remote.password != "":
		// The shell that git starts fills in the values: no argument has them.
		helper := `!f() { test "$1" = get && printf ` +
			`'username=%s\npassword=%s\n' "$` + envGitUser + `" "$` + envGitPassword + `"; }; f`
		clone = append(clone, "-c", quote("credential."+j.remote.host()+".helper="+helper))
	}
	clone = append(clone, "clone --quiet")
	if !j.full {
		clone = append(clone, "--depth 1")
	}
	if j.branch != "" {
		clone = append(clone, "--branch", quote(j.branch))
	}
	b.line(append(clone, "--", quote(j.remote.clone), tmp)...)
	if j.branch == "" {
		b.line("git -C", tmp, "checkout --quiet -b", quote(j.newBranch))
	}
	b.line("if [ -e", quote(j.target), "]; then rm -rf", tmp+"; else mv", tmp, quote(j.target)+"; fi")
}

// setupScript returns a script that runs the project's setup script once for a task, however often it
// is called: a second call waits until the first has ended. The exit code is the setup script's. With
// approved it runs a copy that has this SHA-256, or nothing. The copy is beside the original, because
// scripts look for their directory.
func setupScript(dir, task, approved string) string {
	var b script
	b.line("cd", quote(dir), "|| exit 0")
	b.line("[ -f .openhands/setup.sh ] || exit 0")
	b.line(`at="$(git rev-parse --absolute-git-dir 2>/dev/null)" || at="$PWD/.openhands"`)
	b.line(`run="$at/bivouac-setup-` + task + `"; tries=0`)
	b.line(`until mkdir "$run" 2>/dev/null; do`)
	b.line(`  if [ -e "$run/exit" ]; then break; fi`)
	b.line(`  pid="$(cat "$run/pid" 2>/dev/null)"; tries=$((tries + 1))`)
	// Whoever ran it was killed before its end.
	b.line(
		`  if [ -n "$pid" ] && ! grep -qs "bivouac-setup-` + task + `" "/proc/$pid/cmdline" && [ ! -e "$run/exit" ]; ` +
			`then rm -rf "$run"; continue; fi`,
	)
	b.line(`  if [ -z "$pid" ] && [ "$tries" -gt 10 ]; then rm -rf "$run"; continue; fi`)
	b.line(`  sleep 1`)
	b.line(`done`)
	b.line(`if [ ! -e "$run/exit" ]; then`)
	b.line(`  echo $$ >"$run/pid"`)
	b.line(`  shell=sh; if command -v bash >/dev/null 2>&1; then shell=bash; fi`)
	if approved == "" {
		b.line(`  code=0; "$shell" .openhands/setup.sh </dev/null >"$run/log" 2>&1 || code=$?`)
	} else {
		b.line(`  code=0; copy=.openhands/.bivouac-setup-` + task + `.sh`)
		b.line(`  rm -f "$copy"; cp .openhands/setup.sh "$copy"`)
		b.line(`  if [ "$(` + sumCommand(`"$copy"`) + `)" = ` + approved + ` ]; then`)
		b.line(`    "$shell" "$copy" </dev/null >"$run/log" 2>&1 || code=$?`)
		b.line(`  else`)
		b.line(`    code=` + strconv.Itoa(exitChanged) + `; echo '` + setupFile + textChanged + `' >"$run/log"`)
		b.line(`  fi`)
		b.line(`  rm -f "$copy"`)
	}
	b.line(`  echo "$code" >"$run/exit.new" && mv "$run/exit.new" "$run/exit"`)
	b.line(`fi`)
	b.line(`tail -c 4096 "$run/log" >&2`)
	b.reportFound(false)
	b.line(`exit "$(cat "$run/exit")"`)
	return b.String()
}

// hooksScript returns a script that makes .openhands/pre-commit.sh the repository's pre-commit hook.
// A hook that is there already runs after it, as pre-commit.local. With approved the hook runs the file
// while it has this SHA-256.
func hooksScript(dir, approved string) string {
	const ours = "# Installed by Bivouac: it runs .openhands/pre-commit.sh."
	var b script
	b.line("cd", quote(dir), "|| exit 0")
	b.line("[ -f .openhands/pre-commit.sh ] || exit 0")
	b.line("set -eu")
	b.line(`hooks="$(git rev-parse --git-path hooks)"; mkdir -p "$hooks"`)
	b.line("chmod +x .openhands/pre-commit.sh")
	b.line(`if [ -e "$hooks/pre-commit" ] && ! grep -qF`, quote(ours), `"$hooks/pre-commit"; then`)
	b.line(`  mv "$hooks/pre-commit" "$hooks/pre-commit.local"; chmod +x "$hooks/pre-commit.local"`)
	b.line(`fi`)
	b.line(`cat >"$hooks/pre-commit.$$" <<'END'`)
	b.line("#!/bin/sh")
	b.line(ours)
	const run = `if [ -x .openhands/pre-commit.sh ]; then .openhands/pre-commit.sh || exit $?; fi`
	if approved != "" {
		b.line(`sum="$(` + sumCommand(gitHooksFile) + `)"`)
		b.line(`if [ -f .openhands/pre-commit.sh ] && [ "$sum" != ` + approved + ` ]; then`)
		b.line(`  echo '` + gitHooksFile + textChanged + `' >&2`)
		b.line("el" + run)
	} else {
		b.line(run)
	}
	b.line(`former="$(git rev-parse --git-path hooks)/pre-commit.local"`)
	b.line(`if [ -x "$former" ]; then exec "$former" "$@"; fi`)
	b.line("END")
	b.line(`chmod +x "$hooks/pre-commit.$$"; mv "$hooks/pre-commit.$$" "$hooks/pre-commit"`)
	return b.String()
}

// script is the text of a shell script.
type script struct{ strings.Builder }

// line adds a line of words.
func (b *script) line(words ...string) { b.WriteString(strings.Join(words, " ") + "\n") }

// reportFound adds lines that say what the project in the current directory has, with sums also their
// SHA-256 (foundSum).
func (b *script) reportFound(sums bool) {
	for _, found := range []string{foundSetup, foundGitHooks} {
		name := strings.TrimPrefix(found, "bivouac: ")
		b.line("if [ -f", quote(name), "]; then echo; echo", quote(found)+"; fi")
		if sums {
			b.line("if [ -f", quote(name), `]; then echo "bivouac: $(`+sumCommand(name)+`) `+name+`"; fi`)
		}
	}
}

// sumCommand returns a command that writes the SHA-256 of a file, or nothing where it can't be had.
func sumCommand(word string) string {
	return "{ sha256sum <" + word + " || shasum -a 256 <" + word + "; } 2>/dev/null | cut -c1-64"
}

// quote makes one word of a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// lastLines returns the end of a command's output, on one line.
func lastLines(s string) string {
	return strings.Join(strings.Fields(decode.Tail(strings.TrimSpace(s), 400)), " ")
}
