package snapshotfile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
)

// seeded returns a store with rows in every table: the state of a released format.
func seeded(t testing.TB) *fsm.Store {
	t.Helper()
	b, err := os.ReadFile("../testdata/snapshot_format_2.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	s := fsm.NewStore()
	if err := s.Restore(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	return s
}

// memory is a scratch file in memory.
type memory struct {
	b  []byte
	at int
}

func (m *memory) Write(b []byte) (int, error) {
	m.b = append(m.b[:m.at], b...)
	m.at += len(b)
	return len(b), nil
}

func (m *memory) Read(b []byte) (int, error) {
	if m.at == len(m.b) {
		return 0, io.EOF
	}
	n := copy(b, m.b[m.at:])
	m.at += n
	return n, nil
}

func (m *memory) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart {
		return 0, errors.New("only from the start")
	}
	m.at = int(offset)
	return offset, nil
}

func testInfo() Info {
	return Info{Created: time.Date(2026, 11, 22, 3, 4, 5, 6, time.UTC), Reason: ReasonSave, Version: "v1", Node: "n1"}
}

func pack(t testing.TB, s *fsm.Store) *Packed {
	t.Helper()
	p, err := Pack(t.Context(), testInfo(), s.Snapshot(), &memory{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func bytesOf(t testing.TB, p *Packed) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := p.WriteTo(&b)
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(b.Len()) || n != p.Size() {
		t.Fatalf("WriteTo says %d, Size %d, it is %d bytes", n, p.Size(), b.Len())
	}
	return b.Bytes()
}

// stateOf returns the state's bytes and the manifest of an intact file.
func stateOf(r io.Reader) (Manifest, []byte, error) {
	f, err := Open(r)
	if err != nil {
		return Manifest{}, nil, err
	}
	b, err := io.ReadAll(f.State())
	return f.Manifest(), b, err
}

func TestFile_RoundTrip(t *testing.T) {
	s := seeded(t)
	p := pack(t, s)
	b := bytesOf(t, p)
	if again := bytesOf(t, p); !bytes.Equal(b, again) {
		t.Error("written twice it is another file")
	}
	v := s.View()
	m := p.Manifest()
	if m.ClusterID != v.ClusterID() || m.Index != v.Index() || m.Term != v.Term() ||
		m.ProtocolVersion != v.ProtocolVersion() || m.Format != Format {
		t.Errorf("manifest %+v", m)
	}
	for name, r := range map[string]io.Reader{
		"whole":         bytes.NewReader(b),
		"byte by byte":  iotest.OneByteReader(bytes.NewReader(b)),
		"data with EOF": iotest.DataErrReader(bytes.NewReader(b)),
	} {
		got, state, err := stateOf(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(m, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		var want bytes.Buffer
		if err := s.Snapshot().Persist(&want); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(state, want.Bytes()) {
			t.Errorf("%s: the state is another", name)
		}
	}
	_, trial, err := Load(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, table := range trial.Tables {
		rows += table.Rows
	}
	if rows == 0 || trial.View.Index() != v.Index() {
		t.Errorf("%d rows at index %d", rows, trial.View.Index())
	}
	restored := fsm.NewStore()
	f, err := Open(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if err := restored.Restore(f.State()); err != nil || restored.Checksum() != s.Checksum() {
		t.Errorf("restored it is another state: %v", err)
	}
}

func TestFile_IsReadByTarAndSha256sum(t *testing.T) {
	for _, tool := range []string{"tar", "sha256sum", "gzip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), bytesOf(t, pack(t, seeded(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec",
		"tar xf f; sha256sum -c SHA256SUMS; gzip -dc parts/* | head -c 20")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `{"bivouac_snapshot":`) {
		t.Errorf("%v: %s", err, out)
	}
}

// cuts returns the lengths below size at and beside the end of each block, and every eleventh
// length between them.
func cuts(size int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for n := range size {
			if at := n % block; (at < 2 || at == block-1 || n%11 == 0) && !yield(n) {
				return
			}
		}
	}
}

// TestFile_TruncatedAnywhere: a file is refused wherever it is cut off.
func TestFile_TruncatedAnywhere(t *testing.T) {
	b := bytesOf(t, pack(t, seeded(t)))
	for n := range cuts(len(b)) {
		_, _, err := stateOf(bytes.NewReader(b[:n]))
		switch {
		case n > 0 && n < block && errors.Is(err, ErrNotSnapshot):
		case !errors.Is(err, ErrTruncated):
			t.Fatalf("the first %d of %d bytes: %v", n, len(b), err)
		}
	}
	if _, _, err := stateOf(bytes.NewReader(append(bytes.Clone(b), 0))); !errors.Is(err, ErrDamaged) {
		t.Errorf("with a byte more: %v", err)
	}
}

// TestFile_FlippedBits: a file with a flipped bit is refused, unless the bit has no effect (the
// padding of an entry, the case of a digit).
func TestFile_FlippedBits(t *testing.T) {
	b := bytesOf(t, pack(t, seeded(t)))
	m, state, err := stateOf(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	unseen := 0
	for i := 0; i < len(b); i += 4 + i%3 {
		damaged := bytes.Clone(b)
		damaged[i] ^= 1 << (i % 8)
		got, gotState, err := stateOf(bytes.NewReader(damaged))
		if err != nil {
			continue
		}
		unseen++
		if !cmp.Equal(m, got) || !bytes.Equal(state, gotState) {
			t.Fatalf("bit %d of byte %d (%q) was flipped and another state believed: %+v", i%8, i, b[i], got)
		}
	}
	if unseen > 3*block {
		t.Errorf("%d flipped bits were not seen, in three entries' filling", unseen)
	}
}

// edited returns the file with another manifest and everything else consistent.
func edited(t testing.TB, s *fsm.Store, edit func(*Manifest)) []byte {
	t.Helper()
	p := pack(t, s)
	edit(&p.manifest)
	header, err := p.manifest.encode()
	if err != nil {
		t.Fatal(err)
	}
	p.header = header
	var b bytes.Buffer
	if _, err := p.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestLoad_SaysWhatIsWrong(t *testing.T) {
	s := seeded(t)
	for name, c := range map[string]struct {
		edit func(*Manifest)
		want error
		text string
	}{
		"another kind": {func(m *Manifest) { m.Kind = "consul" }, ErrNotSnapshot, "not a bivouac snapshot"},
		"newer format": {
			func(m *Manifest) { m.Format = 2 },
			ErrNewer,
			"its format is 2 and this program reads 1: upgrade",
		},
		"newer protocol":   {func(m *Manifest) { m.ProtocolVersion = 99 }, ErrNewer, "protocol version is 99"},
		"newer state":      {func(m *Manifest) { m.StateFormat = 99 }, ErrNewer, "format of its state is 99"},
		"encrypted":        {func(m *Manifest) { m.Encryption = &Encryption{"k1"} }, ErrEncrypted, `"k1"`},
		"another encoding": {func(m *Manifest) { m.Parts[0].Encoding = "zstd" }, ErrNewer, "zstd"},
		"no state":         {func(m *Manifest) { m.Parts[0].Name = "x" }, ErrDamaged, "0 states"},
		"another cluster":  {func(m *Manifest) { m.ClusterID = "x" }, ErrDamaged, "not that of its state"},
		"another history":  {func(m *Manifest) { m.History = &History{"x", 9} }, ErrDamaged, "not that of its state"},
		"another index":    {func(m *Manifest) { m.Index++ }, ErrDamaged, "not that of its state"},
		"a longer state":   {func(m *Manifest) { m.Parts[0].ContentSize++ }, ErrDamaged, "bytes long"},
		"a shorter state":  {func(m *Manifest) { m.Parts[0].ContentSize-- }, ErrDamaged, "longer than"},
		"a name too long":  {func(m *Manifest) { m.Parts[0].SHA256 = "../x" }, ErrDamaged, "of a part"},
	} {
		_, _, err := Load(bytes.NewReader(edited(t, s, c.edit)))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, content := range map[string]string{
		"text":  strings.Repeat("no snapshot ", 100),
		"short": "x",
		"zeros": strings.Repeat("\x00", 2048),
	} {
		if _, _, err := Load(strings.NewReader(content)); !errors.Is(err, ErrNotSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLoad_PartsItDoesNotKnow: a later writer may add parts. A reader verifies and skips them.
func TestLoad_PartsItDoesNotKnow(t *testing.T) {
	s := seeded(t)
	p := pack(t, s)
	more := p.manifest.Parts[0]
	more.Name = "later"
	scratch := p.scratch.(*memory)
	scratch.b = append(bytes.Clone(scratch.b), scratch.b...)
	p.manifest.Parts = []Part{more, p.manifest.Parts[0]}
	header, err := p.manifest.encode()
	if err != nil {
		t.Fatal(err)
	}
	p.header = header
	b := bytesOf(t, p)
	if _, trial, err := Load(bytes.NewReader(b)); err != nil || trial.View.Index() != s.Index() {
		t.Errorf("%v", err)
	}
	for n := range cuts(len(b)) {
		if _, _, err := stateOf(bytes.NewReader(b[:n])); err == nil {
			t.Fatalf("the first %d of %d bytes are believed", n, len(b))
		}
	}
}

func TestLoad_ReaderFails(t *testing.T) {
	b := bytesOf(t, pack(t, seeded(t)))
	broken := errors.New("the disk is gone")
	for _, n := range []int{0, 100, 600, 2000, len(b) - 10} {
		_, _, err := Load(io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) || errors.Is(err, ErrTruncated) || errors.Is(err, ErrDamaged) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

// TestRestore_OfAFileThatIsDamagedBehindItsState: the state is intact but the manifest is not the
// one that was written. Nothing is restored, and the error says why.
func TestRestore_OfAFileThatIsDamagedBehindItsState(t *testing.T) {
	b := bytes.Replace(bytesOf(t, pack(t, seeded(t))), []byte(`"bivouac_version": "v1"`),
		[]byte(`"bivouac_version": "v2"`), 1)
	f, err := Open(bytes.NewReader(b))
	if err != nil || f.Manifest().Version != "v2" {
		t.Fatalf("%+v %v", f, err)
	}
	s := fsm.NewStore()
	if err := s.Restore(f.State()); !errors.Is(err, ErrDamaged) || s.Index() != 0 {
		t.Errorf("at %d: %v", s.Index(), err)
	}
}

func TestPack_NamesTheHistory(t *testing.T) {
	s := seeded(t)
	raise := fsm.NewCommand("raise", time.Now(), "", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	if _, err := s.Apply(s.Index()+1, raise); err != nil {
		t.Fatal(err)
	}
	m, _, err := Load(bytes.NewReader(bytesOf(t, pack(t, s))))
	if err != nil || m.History == nil || m.History.ID != s.View().History().ID || m.History.Epoch != 1 {
		t.Errorf("%+v %v", m.History, err)
	}
}

func TestPack_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Pack(ctx, testInfo(), seeded(t).Snapshot(), &memory{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestManifest_IsWrittenForPeople(t *testing.T) {
	b, err := pack(t, seeded(t)).Manifest().encode()
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	if _, there := m["encryption"]; !there || m["kind"] != "bivouac-snapshot" || m["format"] != 1.0 {
		t.Errorf("%s", b)
	}
}
