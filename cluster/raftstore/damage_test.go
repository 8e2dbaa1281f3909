package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	damageEntries  = 300
	damageSnapshot = 200
	damageFirst    = 170 // the log begins here: the older snapshot does not reach it
	damageOlder    = 140
)

// makeData fills a data directory, which open opens: entries, values, two snapshots.
func makeData(t *testing.T, dir string, open func(*testing.T, string) Store) {
	t.Helper()
	s := open(t, dir)
	if err := Set(s.Stable, KeyNodeID, "n1.x"); err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= damageEntries; {
		var batch []*raft.Log
		for range 1 + i%7 {
			if i <= damageEntries {
				batch = append(batch, logEntry(i))
				i++
			}
		}
		if err := s.Logs.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
		if err := s.Stable.SetUint64([]byte("CurrentTerm"), i/50); err != nil {
			t.Fatal(err)
		}
	}
	for key, err := range map[string]error{
		"LastVoteTerm": s.Stable.SetUint64([]byte("LastVoteTerm"), 6),
		"LastVoteCand": s.Stable.Set([]byte("LastVoteCand"), []byte("10.0.0.1:8301")),
		"promise":      Set(s.Stable, KeyPromise, "n1.x"),
	} {
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
	_, transport := raft.NewInmemTransport("")
	for _, index := range []uint64{damageOlder, damageSnapshot} {
		configuration := raft.Configuration{
			Servers: []raft.Server{{ID: "n1.x", Address: "10.0.0.1:8301"}, {ID: "n2.y", Address: "10.0.0.2:8301"}},
		}
		sink, err := s.Snapshots.Create(1, index, 3, configuration, 7, transport)
		if err == nil {
			_, err = sink.Write(stateOf(index))
		}
		if err = errors.Join(err, sink.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Logs.DeleteRange(1, damageFirst-1), s.MarkEnd(), s.Close()); err != nil {
		t.Fatal(err)
	}
}

func logEntry(i uint64) *raft.Log {
	return &raft.Log{
		Index: i,
		Term:  1 + i/100,
		Type:  raft.LogCommand,
		Data:  bytes.Repeat([]byte(fmt.Sprintf("entry %d;", i)), 1+int(i%40)),
	}
}

func stateOf(index uint64) []byte { return bytes.Repeat([]byte(fmt.Sprintf("state %d\n", index)), 500) }

func testOptions() Options {
	return Options{Logger: slog.New(slog.DiscardHandler), Library: hclog.NewNullLogger()}
}

func mustOpen(t *testing.T, dir string) Store {
	t.Helper()
	s, err := Open(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sameData compares a data directory that could be opened with what makeData
// wrote.
func sameData(s Store) error {
	for key, want := range map[string]uint64{"CurrentTerm": (damageEntries + 1) / 50, "LastVoteTerm": 6} {
		if got, err := s.Stable.GetUint64([]byte(key)); err != nil || got != want {
			return fmt.Errorf("%s is %d, was %d (%v)", key, got, want, err)
		}
	}
	if got, err := s.Stable.Get([]byte("LastVoteCand")); err != nil || string(got) != "10.0.0.1:8301" {
		return fmt.Errorf("LastVoteCand is %q (%v)", got, err)
	}
	first, err := s.Logs.FirstIndex()
	last, err2 := s.Logs.LastIndex()
	if err != nil || err2 != nil || last != damageEntries || first > damageSnapshot+1 {
		return fmt.Errorf("the log is %d to %d (%v, %v)", first, last, err, err2)
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		want := logEntry(i)
		if err := s.Logs.GetLog(i, &l); err != nil || l.Term != want.Term || l.Type != want.Type ||
			!bytes.Equal(l.Data, want.Data) || len(l.Extensions) > 0 {
			return fmt.Errorf("entry %d differs (%v)", i, err)
		}
	}
	return sameSnapshot(s, first)
}

// sameSnapshot takes the newest snapshot that Raft would take.
func sameSnapshot(s Store, first uint64) error {
	list, err := s.Snapshots.List()
	if err != nil {
		return err
	}
	for _, meta := range list {
		opened, state, err := s.Snapshots.Open(meta.ID)
		if err != nil {
			continue
		}
		raw, err := io.ReadAll(state)
		if err = errors.Join(err, state.Close()); err != nil {
			return err
		}
		if !bytes.Equal(raw, stateOf(opened.Index)) || opened.Term != 3 || opened.ConfigurationIndex != 7 ||
			len(opened.Configuration.Servers) != 2 ||
			opened.Configuration.Servers[1].Address != "10.0.0.2:8301" {
			return fmt.Errorf("the snapshot of index %d differs: %+v", opened.Index, opened)
		}
		if first > opened.Index+1 {
			return fmt.Errorf("entries between the snapshot of %d and the log from %d are missing", opened.Index, first)
		}
		return nil
	}
	return errors.New("there is no snapshot")
}

// dataFiles lists the files of a data directory, relative to it.
func dataFiles(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			rel, _ := filepath.Rel(dir, path)
			list = append(list, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestOpen_DamagedFiles flips bits in, cuts, empties and removes each file of
// a data directory, at random places: the directory is opened with exactly what
// was written, or refused with the name of a file and what to do.
func TestOpen_DamagedFiles(t *testing.T) {
	t.Parallel()
	rounds := 10
	if os.Getenv("BIVOUAC_DRILL") == "long" {
		rounds = 4000
	}
	for name, open := range map[string]func(*testing.T, string) Store{"wal": mustOpen, "former": mustOpenFormer} {
		t.Run(name, func(t *testing.T) {
			original := filepath.Join(t.TempDir(), "data")
			makeData(t, original, open)
			intact := map[string]image{}
			for _, file := range dataFiles(t, original) {
				raw, err := os.ReadFile(filepath.Join(original, file))
				if err != nil {
					t.Fatal(err)
				}
				intact[file] = image{bytes.TrimRight(raw, "\x00"), len(raw)}
			}
			s := mustOpen(t, original)
			if err := errors.Join(sameData(s), s.Close()); err != nil {
				t.Fatalf("undamaged: %v", err)
			}
			for file := range intact {
				t.Run(file, func(t *testing.T) { damageFile(t, intact, file, rounds) })
			}
		})
	}
}

func damageFile(t *testing.T, intact map[string]image, file string, rounds int) {
	refused := map[bool]int{}
	for round := range rounds {
		dir := memoryDir(t)
		for name, content := range intact {
			if err := content.write(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		what := damage(t, filepath.Join(dir, file), intact[file], round)
		refused[tryDamaged(t, dir, what)]++
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d times refused, %d times as it was", refused[true], refused[false])
}

// image is a file's content without the zeroes at its end, and its size.
type image struct {
	used []byte
	size int
}

func (m image) write(path string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, m.used, 0o600),
		os.Truncate(path, int64(m.size)))
}

// memoryDir gives a folder on a file system in memory where there is one: these
// tests are about what is in files, not about getting it there.
func memoryDir(t *testing.T) string {
	t.Helper()
	if dir, err := os.MkdirTemp("/dev/shm", "bivouac-"); err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

// damage damages the file in the round's way and says how.
func damage(t *testing.T, path string, content image, round int) (what string) {
	t.Helper()
	changed := image{bytes.Clone(content.used), content.size}
	at := rand.IntN(len(changed.used))
	switch {
	case round == 0:
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return "removed"
	case round == 1:
		what, changed = "emptied", image{}
	case round%10 == 2:
		what, changed = fmt.Sprintf("cut at %d", at), image{changed.used[:at], at}
	case round%10 == 3:
		at -= at % 512
		clear(changed.used[at:min(len(changed.used), at+512)])
		what = fmt.Sprintf("sector at %d zeroed", at)
	case round%10 == 4:
		at -= at % 4096
		for i := at; i < min(len(changed.used), at+4096); i++ {
			changed.used[i] = byte(rand.Uint32())
		}
		what = fmt.Sprintf("page at %d overwritten", at)
	default:
		bit := rand.IntN(8)
		changed.used[at] ^= 1 << bit
		what = fmt.Sprintf("bit %d at %d flipped", bit, at)
	}
	if err := changed.write(path); err != nil {
		t.Fatal(err)
	}
	return what
}

// tryDamaged opens the directory and reports whether it was refused.
func tryDamaged(t *testing.T, dir, what string) bool {
	t.Helper()
	s, err := Open(dir, testOptions())
	if err != nil {
		if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), runbook) {
			t.Errorf("%s: the error does not name the file and the way out: %v", what, err)
		}
		return true
	}
	defer func() { _ = s.Close() }()
	if err := sameData(s); err != nil && !isNew(s) {
		t.Errorf("%s: it was opened, and %v", what, err)
	}
	return false
}

// isNew: nothing is left of the node, so it is another one and joins as new.
func isNew(s Store) bool {
	id, err := Get(s.Stable, KeyNodeID)
	last, err2 := s.Logs.LastIndex()
	return err == nil && err2 == nil && id == "" && last == 0
}
