package starttask

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// hasProject reports whether the task's directory may hold a project of the user's: a repository to
// clone, or what is in a sandbox that was there before.
func hasProject(t *fsm.StartTask) bool {
	return deref(t.Request.SelectedRepository) != "" || deref(t.Request.SandboxID) != ""
}

// needsPreparation reports whether the sandbox needs a command before the conversation that the task
// waits for: one of a project, or git's user to set.
func needsPreparation(v *fsm.View, t *fsm.StartTask) bool {
	if hasProject(t) {
		return true
	}
	s := v.Settings(t.UserID)
	return s != nil && (deref(s.Values.GitUserName) != "" || deref(s.Values.GitUserEmail) != "")
}

// prepare clones the repository and sets git's user; without a repository it makes an empty one. A
// sandbox without git, or whose agent server runs no commands, can't have a repository: the task fails
// with that reason. Without a repository git is optional. found is what the project has.
func (r *Runner) prepare(ctx context.Context, v *fsm.View, t *fsm.StartTask, p *place) (found string, o outcome) {
	in, err := r.inputs(ctx, v, t, p)
	if err != nil {
		return "", outcome{err: err}
	}
	job := gitJob{
		dir: p.projects, userName: deref(in.settings.Values.GitUserName), userEmail: deref(in.settings.Values.GitUserEmail),
		branch: deref(t.Request.SelectedBranch), newBranch: "openhands-workspace-" + t.ConversationID[:min(8,
			len(t.ConversationID))],
		tmp: ".bivouac-clone-" + t.ID, full: deref(in.settings.Values.GitFullClone),
		sums: hasProject(t) && confirms(v, t),
	}
	if repo := deref(t.Request.SelectedRepository); repo != "" {
		job.remote, err = in.remote(repo, job.branch)
		if err != nil {
			return "", outcome{fatal: in.scrub(err.Error())}
		}
		job.target = path.Base(repo)
	}
	r.step(ctx, t, "prepare repository")
	out, err := r.clone(ctx, in, job)
	switch {
	case err != nil && job.remote.clone == "" && errors.Is(err, agent.ErrRefused):
		return "", outcome{}
	case err != nil:
		return "", r.repositoryOutcome(err, in)
	case out.ExitCode != 0 && job.remote.clone == "":
		r.log.Info("preparing git in a sandbox failed", "task", t.ID, "sandbox", t.SandboxID, "reason",
			lastLines(in.scrub(out.Stderr)))
		return "", outcome{}
	case out.ExitCode != 0:
		return "", outcome{
			fatal: "Unable to prepare repository " + deref(
				t.Request.SelectedRepository,
			) + ": " + lastLines(
				in.scrub(out.Stderr),
			),
		}
	}
	return out.Stdout, outcome{}
}

// clone runs the job. Its credential goes through the command's environment. A server that passes none
// gets it through a file in memory that the script removes, because it keeps a command's text.
func (r *Runner) clone(ctx context.Context, in *inputs, job gitJob) (agent.Output, error) {
	cmd := agent.Command{Command: job.script(), Timeout: r.cfg.RepositoryTimeout}
	if job.remote.password == "" {
		return r.agents.RunCommand(ctx, in.place.url, in.key, cmd)
	}
	in.values = append(in.values, job.remote.password, job.remote.credential())
	cmd.Env = map[string]string{envGitUser: job.remote.user, envGitPassword: job.remote.password}
	out, err := r.agents.RunCommand(ctx, in.place.url, in.key, cmd)
	if err != nil || out.ExitCode != exitNoCredential {
		return out, err
	}
	job.credentialFile = "/dev/shm/.bivouac-credential-" + in.task.ID
	r.step(ctx, in.task, "upload credential")
	if err := r.agents.Upload(ctx, in.place.url, in.key, job.credentialFile,
		[]byte(job.remote.credential()+"\n")); err != nil {
		return out, err
	}
	return r.agents.RunCommand(ctx, in.place.url, in.key, agent.Command{Command: job.script(), Timeout: cmd.Timeout})
}

// initEmpty makes an empty repository for a conversation without one, and does not wait for it: git is
// optional there.
func (r *Runner) initEmpty(ctx context.Context, in *inputs) {
	cmd := agent.Command{Command: gitJob{dir: in.place.projects}.script(), Timeout: time.Minute}
	if _, err := r.agents.StartCommand(ctx, in.place.url, in.key, cmd); err != nil && ctx.Err() == nil {
		r.log.Debug("making an empty repository failed", "task", in.task.ID, "error", in.scrub(err.Error()))
	}
}

func (r *Runner) repositoryOutcome(err error, in *inputs) outcome {
	var e *agent.Error
	if errors.As(err, &e) && (e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed) {
		return outcome{fatal: "Unable to prepare repository " + deref(in.task.Request.SelectedRepository) +
			": the agent server in this sandbox runs no commands"}
	}
	return r.agentOutcome(err, in)
}

// remote is where a repository is cloned from, and the credential for it.
type remote struct {
	clone, user, password string
}

// credential returns the line for git's credential store.
func (r remote) credential() string {
	u, err := url.Parse(r.clone)
	if err != nil {
		return "" // it was made by url.URL
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, User: url.UserPassword(r.user, r.password)}).String()
}

// host returns the URL of the remote's server, to which alone the credential goes.
func (r remote) host() string {
	u, err := url.Parse(r.clone)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
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
	host = cmp.Or(host, known.host)
	if !ok || host == "" {
		return remote{}, errors.New(
			"Repositories can't be cloned from the git provider " + string(kind),
		) //nolint:staticcheck // shown as it is
	}
	if !strings.Contains(host, "://") {
		host = "https://" + host
	}
	u, err := url.Parse(host)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return remote{}, errors.New(
			"The git provider's host is not usable: " + string(kind),
		) //nolint:staticcheck // shown as it is
	}
	u = u.JoinPath(repo + ".git")
	u.User = nil
	return remote{clone: u.String(), user: known.user, password: in.tokens[kind]}, nil
}
