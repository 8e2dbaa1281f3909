package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// maxDiffs is how many changed files are compared for the size of the changes.
const maxDiffs = 200

// runResult is the last line of --json.
type runResult struct {
	Conversation string    `json:"conversation_id"`
	Sandbox      string    `json:"sandbox_id"`
	Status       string    `json:"execution_status"`
	Answer       string    `json:"answer"`
	Changes      *diffSize `json:"changes"`
}

// diffSize is the size of what a conversation changed in its repository.
type diffSize struct {
	Files      int `json:"files"`
	Insertions int `json:"insertions"`
	Deletions  int `json:"deletions"`
}

// String formats the size as git does.
func (c diffSize) String() string {
	parts := []string{plural(c.Files, "file") + " changed"}
	if c.Insertions > 0 || c.Deletions == 0 {
		parts = append(parts, plural(c.Insertions, "insertion")+"(+)")
	}
	if c.Deletions > 0 {
		parts = append(parts, plural(c.Deletions, "deletion")+"(-)")
	}
	return strings.Join(parts, ", ")
}

func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// conclude shows how the run ended and returns the exit code.
func (f *runFollower) conclude() error {
	f.out.live("")
	r := runResult{Conversation: f.conversation, Sandbox: f.sandbox, Status: f.status}
	if f.status == statusFinished {
		var answer struct {
			Response string `json:"response"`
		}
		if err := f.call(http.MethodGet, f.of("/agent_final_response"), nil, &answer); err != nil {
			return fmt.Errorf("asking for the agent's answer: %w", err)
		}
		r.Answer = answer.Response
	}
	r.Changes = f.changes()
	if f.flags.api.asJSON {
		line, err := json.Marshal(r)
		if err == nil {
			line, err = printableJSON(line)
		}
		if err == nil {
			_, err = f.p.stdout.Write(append(line, '\n'))
		}
		if err != nil {
			return fmt.Errorf("printing the end: %w", err)
		}
		return f.code()
	}
	if r.Answer != "" && r.Answer != f.shown.said {
		f.out.print("\n" + r.Answer)
	}
	if r.Changes != nil && r.Changes.Files > 0 {
		f.out.print("\n" + r.Changes.String())
	}
	if f.status != statusFinished {
		f.out.print("the run has ended: " + strings.ReplaceAll(f.status, "_", " ") +
			"; go on with: bivouac conversations send " + f.conversation + " TEXT")
	}
	return f.code()
}

// code is the exit code of a run that has ended.
func (f *runFollower) code() error {
	switch {
	case f.status == statusFinished:
		return nil
	case f.interrupted || f.status == statusPaused:
		return exitStatus(exitInterrupted)
	case f.status == statusStuck || f.status == statusError && f.limited:
		return exitStatus(exitLimit)
	case f.status == statusIdle && f.rejected:
		return exitStatus(exitRejected)
	case f.status == statusIdle: // nothing ran
		return nil
	}
	return exitStatus(exitFailed)
}

// changes returns the size of the changes, nil where it is not known: there is no git, or the sandbox
// is gone. A file that can't be compared counts as a file alone.
func (f *runFollower) changes() *diffSize {
	var info struct {
		Workspace struct {
			Dir string `json:"working_dir"`
		} `json:"workspace"`
	}
	if f.call(http.MethodGet, f.of(""), nil, &info) != nil {
		return nil
	}
	var list []struct {
		Status string `json:"status"`
		Path   string `json:"path"`
	}
	dir := info.Workspace.Dir
	if f.call(http.MethodGet, f.agent("/api/git/changes?"+url.Values{"path": {dir}}.Encode()), nil, &list) != nil {
		return nil
	}
	size := diffSize{Files: len(list)}
	for _, one := range list[:min(len(list), maxDiffs)] {
		var diff struct {
			Original *string `json:"original"`
			Modified *string `json:"modified"`
		}
		q := url.Values{"path": {dir + "/" + one.Path}}
		if f.call(http.MethodGet, f.agent("/api/git/diff?"+q.Encode()), nil, &diff) != nil {
			continue
		}
		inserted, deleted := lineChanges(deref(diff.Original), deref(diff.Modified))
		size.Insertions += inserted
		size.Deletions += deleted
	}
	return &size
}

// maxEdits bounds the work of lineChanges: above it all lines count as replaced.
const maxEdits = 4000

// lineChanges counts the lines of the shortest edit of one text into another (Myers, "An O(ND)
// Difference Algorithm", without the edit itself).
func lineChanges(before, after string) (inserted, deleted int) {
	a, b := linesOf(before), linesOf(after)
	most := min(len(a)+len(b), maxEdits)
	furthest := make([]int, 2*most+2) // by diagonal
	for d := range most + 1 {
		for k := -d; k <= d; k += 2 {
			x := 0
			switch {
			case d == 0:
			case k == -d || k != d && furthest[most+k-1] < furthest[most+k+1]:
				x = furthest[most+k+1]
			default:
				x = furthest[most+k-1] + 1
			}
			for x < len(a) && x-k < len(b) && x-k >= 0 && a[x] == b[x-k] {
				x++
			}
			furthest[most+k] = x
			if x >= len(a) && x-k >= len(b) {
				return (d + len(b) - len(a)) / 2, (d - len(b) + len(a)) / 2
			}
		}
	}
	return len(b), len(a)
}

func linesOf(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
