package starttask

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// needsPreparation reports whether the sandbox needs something before the conversation: a
// repository to clone, or git's user to set.
func needsPreparation(v *fsm.View, t *fsm.StartTask) bool {
	if deref(t.Request.SelectedRepository) != "" {
		return true
	}
	s := v.Settings(t.UserID)
	return s != nil && (deref(s.Values.GitUserName) != "" || deref(s.Values.GitUserEmail) != "")
}

// prepare clones the repository and sets git's user. A sandbox without git, or whose agent server
// runs no commands, can't have a repository: the task fails with that reason. Without a
// repository git is optional.
func (r *Runner) prepare(ctx context.Context, v *fsm.View, t *fsm.StartTask, p *place) outcome {
	in, err := r.inputs(ctx, v, t, p)
	if err != nil {
		return outcome{err: err}
	}
	job := gitJob{
		dir: p.projects, userName: deref(in.settings.Values.GitUserName), userEmail: deref(in.settings.Values.GitUserEmail),
		branch: deref(t.Request.SelectedBranch), newBranch: "openhands-workspace-" + t.ConversationID[:min(8, len(t.ConversationID))],
		tmp: ".bivouac-clone-" + t.ID,
	}
	if repo := deref(t.Request.SelectedRepository); repo != "" {
		remote, err := in.remote(repo, job.branch)
		if err != nil {
			return outcome{fatal: in.scrub(err.Error())}
		}
		job.remote, job.target = remote.clone, path.Base(repo)
		if remote.credential != "" {
			// The credential goes through a file that the script removes, because the sandbox
			// keeps a command's text and a remote's URL.
			job.credential = path.Join(p.projects, ".bivouac-credential-"+t.ID)
			r.step(ctx, t, "upload credential")
			if err := r.agents.Upload(ctx, p.url, in.key, job.credential, []byte(remote.credential+"\n")); err != nil {
				return r.repositoryOutcome(err, in)
			}
			in.values = append(in.values, remote.credential)
		}
	}
	r.step(ctx, t, "prepare repository")
	out, err := r.agents.RunCommand(ctx, p.url, in.key, agent.Command{Command: job.script(), Timeout: r.cfg.RepositoryTimeout})
	switch {
	case err != nil && job.remote == "" && errors.Is(err, agent.ErrRefused):
		return outcome{}
	case err != nil:
		return r.repositoryOutcome(err, in)
	case out.ExitCode != 0 && job.remote == "":
		r.log.Info("setting git's user in a sandbox failed", "task", t.ID, "sandbox", t.SandboxID, "reason", lastLines(in.scrub(out.Stderr)))
		return outcome{}
	case out.ExitCode != 0:
		return outcome{fatal: "Unable to prepare repository " + deref(t.Request.SelectedRepository) + ": " + lastLines(in.scrub(out.Stderr))}
	}
	return outcome{}
}

func (r *Runner) repositoryOutcome(err error, in *inputs) outcome {
	var e *agent.Error
	if errors.As(err, &e) && (e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed) {
		return outcome{fatal: "Unable to prepare repository " + deref(in.task.Request.SelectedRepository) +
			": the agent server in this sandbox runs no commands"}
	}
	return r.agentOutcome(err, in)
}

// remote is where a repository is cloned from.
type remote struct {
	clone string
	// credential is a line for git's credential store; empty without a token.
	credential string
}

// gitProviders has host and user name by provider, for repositories given as owner/name.
var gitProviders = map[fsm.ProviderType]struct{ host, user string }{ //nolint:gochecknoglobals // read-only
	fsm.ProviderGitHub:              {"github.com", "x-access-token"},
	fsm.ProviderGitLab:              {"gitlab.com", "oauth2"},
	fsm.ProviderBitbucket:           {"bitbucket.org", "x-token-auth"},
	fsm.ProviderBitbucketDataCenter: {"", "x-token-auth"},
	fsm.ProviderForgejo:             {"codeberg.org", "oauth2"},
	fsm.ProviderAzureDevOps:         {"dev.azure.com", "oauth2"},
}

var (
	repositoryName = regexp.MustCompile(`^[A-Za-z0-9_.~][A-Za-z0-9_.~ -]*(/[A-Za-z0-9_.~][A-Za-z0-9_.~ -]*)+$`)
	branchName     = regexp.MustCompile(`^[^-\x00-\x20\x7f~^:?*\[\\][^\x00-\x20\x7f~^:?*\[\\]*$`)
)

// remote returns the repository's URL and the token for it: the named provider's, else the first
// connected one's, else GitHub's without a token.
func (in *inputs) remote(repo, branch string) (remote, error) {
	if !repositoryName.MatchString(repo) || strings.Contains(repo, "..") {
		return remote{}, errors.New("Not a repository name: " + repo) //nolint:staticcheck // shown as it is
	}
	if branch != "" && !branchName.MatchString(branch) {
		return remote{}, errors.New("Not a branch name: " + branch) //nolint:staticcheck // shown as it is
	}
	kind, host := fsm.ProviderGitHub, ""
	named := in.task.Request.GitProvider
	for _, p := range in.providers {
		if _, known := gitProviders[p.Type]; known && (named == nil || p.Type == *named) {
			kind, host = p.Type, deref(p.Host)
			break
		}
	}
	if named != nil {
		kind = *named
	}
	known, ok := gitProviders[kind]
	if host == "" {
		host = known.host
	}
	if !ok || host == "" {
		return remote{}, errors.New("Repositories can't be cloned from the git provider " + string(kind)) //nolint:staticcheck // shown as it is
	}
	if !strings.Contains(host, "://") {
		host = "https://" + host
	}
	u, err := url.Parse(host)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return remote{}, errors.New("The git provider's host is not usable: " + string(kind)) //nolint:staticcheck // shown as it is
	}
	u = u.JoinPath(repo + ".git")
	u.User = nil
	out := remote{clone: u.String()}
	if token := in.tokens[kind]; token != "" {
		out.credential = (&url.URL{Scheme: u.Scheme, Host: u.Host, User: url.UserPassword(known.user, token)}).String()
	}
	return out, nil
}

// gitJob has the parameters of the script in the sandbox.
type gitJob struct {
	dir, userName, userEmail string
	remote, target, tmp      string
	branch, newBranch        string
	credential               string
}

// script returns a POSIX shell script that can be repeated, even while an earlier run of it has
// not ended: the clone appears under its name whole or not at all.
func (j gitJob) script() string {
	var b strings.Builder
	line := func(parts ...string) { b.WriteString(strings.Join(parts, " ") + "\n") }
	line("set -eu")
	if j.credential != "" {
		line("trap", quote("rm -f "+quote(j.credential)), "EXIT")
	}
	line("mkdir -p", quote(j.dir))
	line("cd", quote(j.dir))
	line("command -v git >/dev/null 2>&1 || { echo 'git is not installed in this sandbox' >&2; exit 69; }")
	line("export GIT_TERMINAL_PROMPT=0")
	for _, user := range [][2]string{{"user.name", j.userName}, {"user.email", j.userEmail}} {
		if user[1] != "" {
			// Another conversation of the sandbox may be setting it at this moment.
			set := "git config --global " + user[0] + " " + quote(user[1])
			line(set, "|| { sleep 1;", set+"; }")
		}
	}
	if j.remote == "" {
		return b.String()
	}
	tmp := quote(j.tmp) + `".$$"`
	line("if [ -e", quote(j.target+"/.git"), "]; then exit 0; fi")
	line("if [ -e", quote(j.target), "]; then echo", quote(j.target+" exists and is not a git repository"), ">&2; exit 73; fi")
	clone := []string{"git", "-c credential.helper="}
	if j.credential != "" {
		clone = append(clone, "-c", quote("credential.helper=store --file="+quote(j.credential)))
	}
	clone = append(clone, "clone --quiet --depth 1")
	if j.branch != "" {
		clone = append(clone, "--branch", quote(j.branch))
	}
	line(append(clone, "--", quote(j.remote), tmp)...)
	if j.branch == "" {
		line("git -C", tmp, "checkout --quiet -b", quote(j.newBranch))
	}
	line("if [ -e", quote(j.target), "]; then rm -rf", tmp+"; else mv", tmp, quote(j.target)+"; fi")
	return b.String()
}

// quote makes one word of a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// lastLines returns the end of a command's output, on one line.
func lastLines(s string) string {
	return strings.Join(strings.Fields(decode.Tail(strings.TrimSpace(s), 400)), " ")
}
