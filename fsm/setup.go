package fsm

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-memdb"
)

// The bounds of what a user is asked about repositories.
const (
	// MaxSetups is how many questions of one user are kept. The one that is unused for longest goes
	// first, and is asked again.
	MaxSetups = 200
	// MaxSetupFiles bounds the files of one question.
	MaxSetupFiles = 64
	// SetupRetention is how long a question is kept that no start has used.
	SetupRetention = 180 * 24 * time.Hour
)

// SetupAnswer is what a user said about the files of a repository that run by themselves.
type SetupAnswer string

// The answers; "" is none yet.
const (
	SetupAccepted SetupAnswer = "accepted"
	SetupDeclined SetupAnswer = "declined"
)

// SetupFile is a file of a repository that runs by itself, and the SHA-256 of what would run.
type SetupFile struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
}

// TaskSetup is what a start task asks its user about, where the conversation asks before it acts.
type TaskSetup struct {
	// Repository is the URL that is cloned, or a name for the sandbox whose files these are.
	Repository string `json:"repository"`
	// Hash is SetupHash of Files.
	Hash string `json:"hash"`
	// Directory has the files in the sandbox.
	Directory string      `json:"directory,omitempty"`
	Files     []SetupFile `json:"files"`
	// Skipped: the start went on without them.
	Skipped bool `json:"skipped,omitempty"`
}

// Setup is the question that a user was asked about a repository and the hash of its files, and the
// answer. It is asked once.
type Setup struct {
	UserID     string      `json:"user_id"`
	Repository string      `json:"repository"`
	Hash       string      `json:"hash"`
	Answer     SetupAnswer `json:"answer,omitempty"`
	// AskedAt is when it was first asked, UsedAt when it last mattered to a start.
	AskedAt time.Time `json:"asked_at"`
	UsedAt  time.Time `json:"used_at"`
}

// SetupHash is the hash of files in the order of their paths.
func SetupHash(files []SetupFile) string {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b SetupFile) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.SHA256, b.SHA256))
	})
	h := sha256.New()
	for _, f := range files {
		h.Write([]byte(f.Path + "\x00" + f.SHA256 + "\n"))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// textBytes returns the bytes of the texts; nil has none.
func (s *TaskSetup) textBytes() int {
	if s == nil {
		return 0
	}
	n := len(s.Repository) + len(s.Hash) + len(s.Directory)
	for _, f := range s.Files {
		n += elementOverhead + len(f.Path) + len(f.SHA256)
	}
	return n
}

func setupTable() *memdb.TableSchema {
	return newTable(tableSetups,
		newIndex(indexID, func(s *Setup) []byte { return setupKey(s.UserID, s.Repository, s.Hash) }))
}

func setupKey(user, repository, hash string) []byte {
	if user == "" || hash == "" {
		return nil
	}
	return keyOf(user, hash, repository)
}

// Setup finds what a user was asked about a repository and a hash, nil for nothing.
func (v *View) Setup(userID, repository, hash string) *Setup {
	return first[Setup](v.txn, tableSetups, indexID, setupKey(userID, repository, hash))
}

// StartTaskAskBody asks the user of an unfinished task about the files of its repository that would
// run by themselves, and moves the task to RUNNING_SETUP_SCRIPT. A question that was asked before
// keeps its answer and its time. A task that has asked is not changed. It sets Result.StartTask.
type StartTaskAskBody struct {
	ID string `json:"id"`
	// Setup has no Skipped.
	Setup TaskSetup `json:"setup"`
}

// CommandType implements Body.
func (*StartTaskAskBody) CommandType() CommandType { return StartTaskAsk }

// check implements Body.
func (b *StartTaskAskBody) check(r *rules) {
	s := &b.Setup
	r.id("start task id", b.ID)
	r.text("repository", s.Repository, MaxLine)
	r.text("directory", s.Directory, MaxLine)
	r.check(len(s.Files) > 0 && len(s.Files) <= MaxSetupFiles, "a question has 1 to %d files", MaxSetupFiles)
	for _, f := range s.Files {
		r.text("path", f.Path, MaxPath)
		r.hash("sha256", f.SHA256)
	}
	r.check(s.Hash == SetupHash(s.Files), "the hash is not that of the files")
	r.check(!s.Skipped, "a question that is asked is not skipped")
}

func (t *transaction) applyStartTaskAsk(b *StartTaskAskBody) (Result, *Error) {
	old, err := t.openTask(b.ID)
	switch {
	case err != nil:
		return Result{}, err
	case old.Setup != nil:
		return Result{StartTask: old}, nil
	case old.SandboxID == "" || old.Status.rank() > StartTaskRunningSetupScript.rank():
		return Result{}, Errorf(CodeConflict, "the start task %s is %s and can't ask", b.ID, old.Status)
	}
	task, setup := *old, b.Setup
	task.Setup, task.Status, task.Detail, task.UpdatedAt = &setup, StartTaskRunningSetupScript, "", t.now
	put(t, tableStartTasks, old, &task)
	t.useSetup(task.UserID, setup.Repository, setup.Hash)
	return Result{StartTask: &task}, nil
}

// useSetup stores that a start needs an answer, and returns the row.
func (t *transaction) useSetup(user, repository, hash string) *Setup {
	old := first[Setup](t.txn, tableSetups, indexID, setupKey(user, repository, hash))
	row := &Setup{UserID: user, Repository: repository, Hash: hash, AskedAt: t.now}
	if old == nil {
		t.collectSetups(user)
	} else {
		*row = *old
	}
	row.UsedAt = t.now
	put(t, tableSetups, old, row)
	return row
}

// collectSetups drops the user's questions that are out of use, and makes room for one.
func (t *transaction) collectSetups(user string) {
	rows := collect(withPrefix[Setup](t.txn, tableSetups, indexID, prefixOf(user)))
	slices.SortStableFunc(rows, func(a, b *Setup) int { return a.UsedAt.Compare(b.UsedAt) })
	for i, s := range rows {
		if len(rows)-i < MaxSetups && t.now.Sub(s.UsedAt) < SetupRetention {
			return
		}
		drop(t, tableSetups, s)
	}
}

// StartTaskAnswerBody answers what a task of Command.UserID asks or has asked. The last answer counts,
// for the task while it waits and for later starts of the user with the same repository and hash. A
// task that asks nothing, or about another hash, is CodeConflict; one of another user CodeNotFound. It
// sets Result.StartTask.
type StartTaskAnswerBody struct {
	ID     string `json:"id"`
	Hash   string `json:"hash"`
	Accept bool   `json:"accept"`
}

// CommandType implements Body.
func (*StartTaskAnswerBody) CommandType() CommandType { return StartTaskAnswer }

// check implements Body.
func (b *StartTaskAnswerBody) check(r *rules) {
	r.lookedUp("start task id", b.ID)
	r.lookedUp("hash", b.Hash)
}

func (t *transaction) applyStartTaskAnswer(b *StartTaskAnswerBody) (Result, *Error) {
	task := first[StartTask](t.txn, tableStartTasks, indexID, []byte(b.ID))
	switch {
	case task == nil || task.UserID != t.cmd.UserID:
		return Result{}, Errorf(CodeNotFound, "start task not found: %s", b.ID)
	case task.Setup == nil:
		return Result{}, Errorf(CodeConflict, "the start task %s asks nothing", b.ID)
	case task.Setup.Hash != b.Hash:
		return Result{}, Errorf(CodeConflict, "the start task %s asks about other files: their hash is %s",
			b.ID, task.Setup.Hash)
	}
	key := setupKey(task.UserID, task.Setup.Repository, b.Hash)
	if first[Setup](t.txn, tableSetups, indexID, key) == nil {
		row := &Setup{UserID: task.UserID, Repository: task.Setup.Repository, Hash: b.Hash}
		if err := t.mayGrow(task.UserID, growthOf(&t.meta, nil, row)); err != nil {
			return Result{}, err
		}
	}
	old := t.useSetup(task.UserID, task.Setup.Repository, b.Hash)
	row := *old
	row.Answer = SetupDeclined
	if b.Accept {
		row.Answer = SetupAccepted
	}
	put(t, tableSetups, old, &row)
	return Result{StartTask: task.withoutContent()}, nil
}
