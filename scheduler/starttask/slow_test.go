package starttask

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/fsm"
)

func TestStartTask_SlowSandboxesHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	repository := func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = new("owner/" + b.ID) }
	for _, c := range []struct {
		what string
		// owner is the owner of the slow ones, by number.
		owner func(i int) string
		edit  func(*fsm.StartTaskCreateBody)
		limit time.Duration
	}{
		{"conversations, another user's", func(int) string { return "mallory" }, nil, time.Second},
		// A user's own tasks wait for each other, a second each.
		{"conversations, the same user's", func(int) string { return taskUser }, nil, 15 * time.Second},
		{"conversations, many users'", func(i int) string { return fmt.Sprintf("user-%d", i) }, nil, 5 * time.Second},
		{"clones, another user's", func(int) string { return "mallory" }, repository, time.Second},
		{"clones, many users'", func(i int) string { return fmt.Sprintf("user-%d", i) }, repository, time.Minute},
	} {
		t.Run(c.what, func(t *testing.T) {
			for _, n := range []int{0, 32, 200} {
				synctest.Test(t, func(t *testing.T) {
					w := newTaskWorld(t)
					w.agents.hang = func(what string) bool { return strings.Contains(what, "bad") }
					stop := w.run(func(r *Runner) { r.cfg.BackoffMin, r.cfg.BackoffMax = 100*time.Millisecond, 5*time.Second })
					defer stop()
					for i := range n {
						w.taskOf(c.owner(i), fmt.Sprintf("bad%04d", i), c.edit)
					}
					time.Sleep(time.Second)
					begin := time.Now()
					task := w.task("600d", c.edit)
					for end := begin.Add(9 * time.Minute); !w.store.View().StartTask(taskUser, task.ID).Done() &&
						time.Now().Before(end); {
						time.Sleep(time.Millisecond)
					}
					took := time.Since(begin)
					t.Logf("a start beside %3d slow ones (%s): %s", n, c.what, took)
					if got := w.store.View().StartTask(taskUser, task.ID); got.Status != fsm.StartTaskReady || took > c.limit {
						t.Errorf("a start beside %d slow ones (%s) is %s after %s", n, c.what, got.Status, took)
					}
				})
			}
		})
	}
}

func TestStartTask_OneUsersTasksLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTaskWorld(t)
		w.agents.hang = func(what string) bool { return strings.Contains(what, "bad") }
		for i := range 20 {
			w.taskOf("mallory", fmt.Sprintf("bad%04d", i), nil)
		}
		task := w.task("600d", nil)
		stop := w.run(func(r *Runner) { r.cfg.Tasks = 8 })
		defer stop()
		time.Sleep(10 * time.Second)
		if got := w.store.View().StartTask(taskUser, task.ID); got.Status != fsm.StartTaskReady {
			t.Errorf("a start behind 20 tasks of another user that hang is %s after 10 s", got.Status)
		}
	})
}
