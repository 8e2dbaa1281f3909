package agentserver

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"
)

// An import says that it is at work while it writes to the disk, and is silent while it waits for input:
// then the leader ends it.
func TestAtWork_IsSilentWhileItWaits(t *testing.T) {
	t.Parallel()
	from, to := io.Pipe()
	a := &atWork{in: from}
	ctx, cancel := context.WithCancel(t.Context())
	ticks, told := make(chan time.Time), make(chan struct{})
	var out bytes.Buffer
	go func() { defer close(told); a.tell(ctx, ticks, &out) }()
	read := make(chan error, 1)
	go func() { _, err := a.Read(make([]byte, 1)); read <- err }()
	for !a.waiting.Load() {
		<-time.After(time.Millisecond)
	}
	ticks <- time.Now()
	ticks <- time.Now() // the first is dealt with
	if _, err := to.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ticks <- time.Now()
	}
	cancel()
	<-told
	// The last tick of either half may be dealt with after the state has changed.
	if n := out.Len(); n < 3 || n > 4 {
		t.Errorf("%d dots, want one for each of the three ticks without a reader", n)
	}
}

// A disk that hangs ends the dots, and with them the import. Input that is taken begins them anew.
func TestAtWork_EndsWithADiskThatHangs(t *testing.T) {
	t.Parallel()
	a := &atWork{in: bytes.NewReader([]byte("x"))}
	ctx, cancel := context.WithCancel(t.Context())
	ticks, told := make(chan time.Time), make(chan struct{})
	var out bytes.Buffer
	go func() { defer close(told); a.tell(ctx, ticks, &out) }()
	for range maxSays + 10 {
		ticks <- time.Now()
	}
	if _, err := a.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ticks <- time.Now()
	}
	cancel()
	<-told
	// The last tick of either half may be dealt with after the state has changed.
	if n := out.Len(); n < maxSays+3 || n > maxSays+4 {
		t.Errorf("%d dots", n)
	}
}
