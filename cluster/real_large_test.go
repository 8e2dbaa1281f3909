package cluster_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/fsm"
)

// largest makes a command of just the size that the log takes.
func largest(t testing.TB) fsm.Command {
	body := &fsm.StartTaskCreateBody{
		ID:             uuid.NewString(),
		ConversationID: uuid.NewString(),
		Request:        fsm.StartRequest{SandboxID: new("none")},
	}
	make := func(bytes int) fsm.Command {
		body.Request.InitialMessage = &fsm.Message{
			Role:    "user",
			Content: []fsm.ContentBlock{{Type: "image", ImageURLs: []string{strings.Repeat("A", bytes)}}},
		}
		return fsm.NewCommand(uuid.NewString(), time.Now(), "ada", body)
	}
	small, err := make(1).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return make(fsm.MaxCommandBytes - len(small) - 16)
}

// TestReal_TheLargestCommands: commands of the size that the log takes are applied,
// through followers too, and a node that is behind by more of them than one message
// brings catches up. What it took is printed.
func TestReal_TheLargestCommands(t *testing.T) {
	if raceDetector {
		t.Skip("each takes seconds with the race detector, and leaders are lost; make test runs it without")
	}
	r := newReal(t, 3)
	r.startAll()
	r.put(0, 1)
	lost := (r.leader() + 1) % 3
	other := 3 - lost - r.leader()
	r.kill(lost)
	for i := range 2 { // more than one message brings
		begin, cmd := time.Now(), largest(t)
		eventually(t, func() bool {
			_, err := r.nodes[other].node.Propose(t.Context(), cmd)
			return err == nil || fsm.CodeOf(err) == fsm.CodeNotFound // of its sandbox: Apply's word
		}, func() string { return "a command of the largest size is not taken" })
		took := time.Since(begin)
		begin = time.Now()
		r.put(other, 2+i)
		t.Logf("a command of %.1f MiB took %s, a small one behind it %s", fsm.MaxCommandBytes/float64(1<<20), took,
			time.Since(begin))
	}
	begin := time.Now()
	r.start(lost)
	r.ready(lost)
	r.want(3)
	t.Logf("the node that was behind by them has them after %s; term %d", time.Since(begin),
		r.nodes[other].node.Status().Term)
}
