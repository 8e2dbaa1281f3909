package starttask

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

// The files of a project that run by themselves.
const (
	setupFile    = ".openhands/setup.sh"
	gitHooksFile = ".openhands/pre-commit.sh"
	hooksFile    = ".openhands/hooks.json"
)

// permission says whether the files of a task's project may run by themselves. Its zero value is no.
type permission int

const (
	denied permission = iota
	asked
	allowed
)

// confirms reports whether the task's conversation asks its user before it acts.
func confirms(v *fsm.View, t *fsm.StartTask) bool {
	s := v.Settings(t.UserID)
	return s != nil && deref(s.Values.ConfirmationMode)
}

// permission returns what the user said about the task's files. A question that was asked is waited
// for until the returned time.
func (r *Runner) permission(v *fsm.View, t *fsm.StartTask) (permission, time.Time) {
	q := t.Setup
	switch {
	case q == nil && confirms(v, t):
		return denied, time.Time{}
	case q == nil:
		return allowed, time.Time{}
	case q.Skipped:
		return denied, time.Time{}
	}
	row := v.Setup(t.UserID, q.Repository, q.Hash)
	switch {
	case row == nil || row.Answer == fsm.SetupDeclined:
		return denied, time.Time{}
	case row.Answer == fsm.SetupAccepted:
		return allowed, time.Time{}
	}
	if until := row.AskedAt.Add(r.cfg.ConfirmTimeout); r.now().Before(until) {
		return asked, until
	}
	return denied, time.Time{}
}

// prepared moves a task on whose repository is there. found is the output of the script.
func (r *Runner) prepared(
	ctx context.Context, v *fsm.View, t *fsm.StartTask, p *place, d *drawn, found string,
) outcome {
	if !hasProject(t) || !confirms(v, t) {
		return r.moveTo(ctx, t, afterPrepare(t, found), p)
	}
	in, err := r.inputs(ctx, v, t, p)
	if err != nil {
		return outcome{err: err}
	}
	if o := r.project(ctx, in, d); o != (outcome{}) {
		return o
	}
	setup, err := in.question(found, d.project)
	if err != nil {
		return outcome{fatal: in.scrub(err.Error())}
	}
	if len(setup.Files) > 0 && v.Active(fsm.VersionSetup) {
		r.step(ctx, t, "ask")
		_, err := r.propose(ctx, &fsm.StartTaskAskBody{ID: t.ID, Setup: *setup})
		if fsm.CodeOf(err) != fsm.CodeInvalid {
			return outcome{err: err}
		}
	}
	if len(setup.Files) > 0 || found != "" {
		r.log.Info("a project's files don't run, because they can't be asked about",
			"task", t.ID, "sandbox", t.SandboxID)
	}
	return r.moveTo(ctx, t, fsm.StartTaskSettingUpSkills, p)
}

// question returns what of the project would run by itself.
func (in *inputs) question(found string, p *project) (*fsm.TaskSetup, error) {
	dir := in.workingDir()
	s := &fsm.TaskSetup{Repository: "sandbox " + in.task.SandboxID, Directory: dir, Files: p.files(dir)}
	if repo := deref(in.task.Request.SelectedRepository); repo != "" {
		from, err := in.remote(repo, deref(in.task.Request.SelectedBranch))
		if err != nil {
			return nil, err
		}
		s.Repository = from.clone
	}
	for _, name := range []string{setupFile, gitHooksFile} {
		if sum := foundSum(found, name); sum != "" {
			s.Files = append(s.Files, fsm.SetupFile{Path: name, SHA256: sum})
		}
	}
	slices.SortFunc(s.Files, func(a, b fsm.SetupFile) int { return strings.Compare(a.Path, b.Path) })
	s.Hash = fsm.SetupHash(s.Files)
	return s, nil
}

// foundSum returns the SHA-256 that a script said a file has, "" for none.
func foundSum(found, name string) string {
	m := regexp.MustCompile(`(?m)^bivouac: ([0-9a-f]{64}) ` + regexp.QuoteMeta(name) + `$`).FindStringSubmatch(found)
	if m == nil {
		return ""
	}
	return m[1]
}

// sumOf returns the SHA-256 of a file that was asked about, "" for none.
func sumOf(s *fsm.TaskSetup, name string) string {
	for _, f := range s.Files {
		if f.Path == name {
			return f.SHA256
		}
	}
	return ""
}

// files returns what runs by itself of what the agent server says of the project. dir is the project's
// directory. Hooks are hashed as the agent server passes them on: that is what runs.
func (p *project) files(dir string) (list []fsm.SetupFile) {
	if p.hooks != nil {
		list = append(list, fsm.SetupFile{Path: hooksFile, SHA256: sum(p.hooks)})
	}
	for _, raw := range p.skillList() {
		if f, runs := runningSkill(raw, dir); runs {
			list = append(list, f)
		}
	}
	return list
}

// permitted returns the part of the project that a conversation gets: without permission nothing that
// runs by itself, with it only what the user was asked about.
func (p *project) permitted(t *fsm.StartTask, may permission, dir string) project {
	out := *p
	if may == allowed && t.Setup == nil {
		return out
	}
	var known []fsm.SetupFile
	if may == allowed {
		known = t.Setup.Files
	}
	if p.hooks != nil && !slices.Contains(known, fsm.SetupFile{Path: hooksFile, SHA256: sum(p.hooks)}) {
		out.hooks = nil
	}
	list := p.skillList()
	kept := slices.DeleteFunc(slices.Clone(list), func(raw json.RawMessage) bool {
		f, runs := runningSkill(raw, dir)
		return runs && !slices.Contains(known, f)
	})
	if len(kept) == len(list) {
		return out
	}
	out.skills = nil
	if doc, err := json.Marshal(kept); err == nil && len(kept) > 0 {
		out.skills = doc
	}
	return out
}

// skillList splits the skills; nil for none.
func (p *project) skillList() (list []json.RawMessage) {
	if json.Unmarshal(p.skills, &list) != nil {
		return nil // there are none, or the agent server refuses them
	}
	return list
}

// runningSkill reports whether an agent server may run something for a skill before the agent asks:
// the MCP servers of its front matter, or a command in its text, which upstream's runs when it reads
// the text. The built-in one runs neither.
func runningSkill(raw json.RawMessage, dir string) (f fsm.SetupFile, runs bool) {
	var s struct {
		Name     string          `json:"name"`
		Content  string          `json:"content"`
		Source   string          `json:"source"`
		MCPTools json.RawMessage `json:"mcp_tools"`
	}
	if json.Unmarshal(raw, &s) != nil {
		return f, true
	}
	servers := string(s.MCPTools) != "" && string(s.MCPTools) != "null"
	if !servers && !strings.Contains(s.Content, "!`") {
		return f, false
	}
	name := "skill " + s.Name
	if at, err := filepath.Rel(dir, s.Source); err == nil && filepath.IsLocal(at) {
		name = at
	}
	// The repository chooses the name, and a user reads it before the answer.
	name = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, name)
	content := s.Content + "\x00" + string(s.MCPTools)
	return fsm.SetupFile{Path: decode.Truncate(name, fsm.MaxPath), SHA256: sum([]byte(content))}, true
}

// sum returns a SHA-256 in hex.
func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// awaitAnswer decides about a task whose setup script is next. done says that the script may run.
func (r *Runner) awaitAnswer(ctx context.Context, v *fsm.View, t *fsm.StartTask) (o outcome, done bool) {
	switch p, until := r.permission(v, t); p {
	case allowed:
		return outcome{}, true
	case asked:
		return outcome{wait: true, until: until, detail: waitingText(t, until)}, false
	default:
		r.step(ctx, t, "skip setup")
		_, err := r.propose(ctx, &fsm.StartTaskAdvanceBody{
			ID: t.ID, Status: fsm.StartTaskSettingUpSkills, SetupSkipped: true,
		})
		return outcome{err: err}, false
	}
}

// waitingText is the task's detail while it waits for an answer.
func waitingText(t *fsm.StartTask, until time.Time) string {
	names := make([]string, 0, len(t.Setup.Files))
	for _, f := range t.Setup.Files {
		names = append(names, f.Path)
	}
	return "You are asked before the files of " + t.Setup.Repository + " run by themselves: " +
		decode.Truncate(strings.Join(names, ", "), 300) +
		". Answer with POST /api/v1/start-tasks/" + t.ID + `/setup {"hash","accept"}; ` +
		"from " + until.UTC().Format(time.RFC3339) + " on the conversation starts without them."
}
