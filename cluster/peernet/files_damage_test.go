package peernet

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// harm is one way in which the files of a node come to be wrong, with the file
// that the error must name, and what it must say.
type harm struct {
	file func(TLSFiles) string
	do   func(t *testing.T, name string, files TLSFiles)
	says string
}

func caFile(f TLSFiles) string   { return f.CAFile }
func certFile(f TLSFiles) string { return f.CertFile }
func keyFile(f TLSFiles) string  { return f.KeyFile }

func put(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// with gives the harm of putting something else into the file.
func with(content []byte) func(*testing.T, string, TLSFiles) {
	return func(t *testing.T, name string, _ TLSFiles) { put(t, name, content) }
}

func cut(t *testing.T, name string, _ TLSFiles) {
	content := read(t, name)
	put(t, name, content[:len(content)/2])
}

// flip changes one bit of what the first block holds; of the key, one of the number
// itself, not of the public key beside it.
func flip(t *testing.T, name string, _ TLSFiles) {
	block, _ := pem.Decode(read(t, name))
	block.Bytes[len(block.Bytes)/3] ^= 1
	put(t, name, pem.EncodeToMemory(block))
}

func gone(t *testing.T, name string, _ TLSFiles) {
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

// unreadable does not depend on who runs the tests: root may read everything.
func unreadable(t *testing.T, name string, _ TLSFiles) {
	gone(t, name, TLSFiles{})
	if err := os.Mkdir(name, 0o700); err != nil {
		t.Fatal(err)
	}
}

// harms are all there are, for the node a of the CA.
func harms(t *testing.T, ca PEM) map[string]harm {
	t.Helper()
	other := authorityFor(t)
	now := time.Now()
	again, another, foreign := issue(t, ca, "a", now,
		time.Hour), issue(t, ca, "z", now, time.Hour), issue(t, other, "a", now, time.Hour)
	swapped := func(t *testing.T, _ string, f TLSFiles) {
		cert, key := read(t, f.CertFile), read(t, f.KeyFile)
		put(t, f.CertFile, key)
		put(t, f.KeyFile, cert)
	}
	found := map[string]harm{
		"a CA that is none":           {caFile, with(again.Key), "no certificate in"},
		"another CA":                  {caFile, with(other.Certificate), "is no certificate of the CA in"},
		"a CA with half a second one": {caFile, with(joined(ca.Certificate, other.Certificate[:300])), "is damaged"},
		"a CA behind a broken one": {
			caFile,
			with(joined(bytes.Replace(other.Certificate, []byte("\nMII"), []byte("\n*II"), 1), ca.Certificate)),
			"is damaged",
		},
		"the key of another pair":            {keyFile, with(again.Key), "is not the key of the certificate in"},
		"a certificate of another pair":      {certFile, with(again.Certificate), "is not the key of the certificate in"},
		"a certificate in the key's place":   {keyFile, with(again.Certificate), "holds no private key"},
		"the two swapped":                    {certFile, swapped, "no certificate in"},
		"the CA's certificate as the key":    {keyFile, with(ca.Certificate), "holds no private key"},
		"the CA's certificate as the pair's": {certFile, with(ca.Certificate), "is not the key of the certificate in"},
		"a pair of another CA": {certFile, func(t *testing.T, _ string, f TLSFiles) {
			put(t, f.CertFile, foreign.Certificate)
			put(t, f.KeyFile, foreign.Key)
		}, "is no certificate of the CA in"},
		"another node's pair": {certFile, func(t *testing.T, _ string, f TLSFiles) {
			put(t, f.CertFile, another.Certificate)
			put(t, f.KeyFile, another.Key)
		}, "node"},
	}
	for kind, file := range map[string]func(TLSFiles) string{"CA": caFile, "certificate": certFile, "key": keyFile} {
		found[kind+" empty"] = harm{file, with(nil), "is empty"}
		found[kind+" gone"] = harm{file, gone, "no such file"}
		found[kind+" unreadable"] = harm{file, unreadable, "can't be read"}
		found[kind+" cut"] = harm{file, cut, ""}
		found[kind+" with a bit flipped"] = harm{file, flip, ""}
		found[kind+" of zeros"] = harm{file, with(make([]byte, 4096)), ""}
		found[kind+" another kind of file"] = harm{file, with([]byte("{\"not\": \"PEM\"}\n")), ""}
	}
	return found
}

func joined(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// A node whose TLS files are damaged, mixed up or another's does not start, and
// says which file it is and what to do; a running one goes on with those it has,
// says the same once, and takes the mended files.
func TestCredentials_DamagedFilesAreNamedAndNotTaken(t *testing.T) {
	ca := authorityFor(t)
	for name, h := range harms(t, ca) {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			dir := t.TempDir()
			files := write(t, dir, ca, issue(t, ca, "a", now, time.Hour))
			var log bytes.Buffer
			running, err := LoadCredentials(files, "", slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			pair, roots := running.current()
			h.do(t, h.file(files), files)

			_, err = LoadCredentials(files, "a", slog.New(slog.DiscardHandler))
			for _, want := range []string{h.file(files), h.says, "bivouac tls issue"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("at the start: %v\nwant %q in it", err, want)
				}
			}
			if err != nil && (strings.Contains(err.Error(), "\n") || strings.Count(err.Error(), h.file(files)) > 1) {
				t.Errorf("not one short line: %v", err)
			}

			for i := range 3 {
				touchAll(files, now.Add(time.Duration(i)*time.Minute))
				lookAgain(running)
				if p, r := running.current(); p != pair || r != roots {
					t.Fatal("the damaged files were taken")
				}
			}
			lines := strings.Count(log.String(), "level=ERROR")
			if lines != 1 || !strings.Contains(log.String(), h.file(files)) || !strings.Contains(log.String(), h.says) {
				t.Errorf("%d lines of errors, want one that names %s and says %q:\n%s", lines, h.file(files), h.says, log.String())
			}
			if err := os.RemoveAll(h.file(files)); err != nil { // the directory of the unreadable
				t.Fatal(err)
			}
			mended := issue(t, ca, "a", now, time.Hour)
			write(t, dir, ca, mended)
			touchAll(files, now.Add(time.Hour))
			lookAgain(running)
			if p, _ := running.current(); !bytes.Equal(p.Certificate[0], keyPair(t, mended).Certificate[0]) {
				t.Error("the mended files are not taken")
			}
		})
	}
}

// touchAll is touch for files of which one may be gone.
func touchAll(files TLSFiles, at time.Time) {
	for _, name := range []string{files.CAFile, files.CertFile, files.KeyFile} {
		_ = os.Chtimes(name, at, at)
	}
}

// Whatever one bit of the three files' DER is flipped, the files are refused with
// the name of one of them, or what is loaded is as good as before: peers shake
// hands with it.
func TestCredentials_NoFlippedBitIsTaken(t *testing.T) {
	ca := authorityFor(t)
	files := write(t, t.TempDir(), ca, issue(t, ca, "a", time.Now(), time.Hour))
	peer := creds(t, write(t, t.TempDir(), ca, issue(t, ca, "b", time.Now(), time.Hour)))
	for _, name := range []string{files.CAFile, files.CertFile, files.KeyFile} {
		whole := read(t, name)
		block, _ := pem.Decode(whole)
		refused, harmless := 0, 0
		for i := range block.Bytes {
			bit := byte(1) << (i % 8)
			block.Bytes[i] ^= bit
			put(t, name, pem.EncodeToMemory(block))
			block.Bytes[i] ^= bit
			c, err := LoadCredentials(files, "", slog.New(slog.DiscardHandler))
			switch {
			case err != nil && !strings.Contains(err.Error(), filepath.Dir(name)):
				t.Errorf("byte %d of %s: %v, which names no file", i, filepath.Base(name), err)
			case err != nil:
				refused++
			default:
				harmless++
				if err := shake(c, peer); err != nil {
					t.Errorf("byte %d of %s is flipped, taken, and no peer talks to it: %v", i, filepath.Base(name), err)
				}
			}
		}
		put(t, name, whole)
		t.Logf("%s: of %d flips %d are refused, %d harmless", filepath.Base(name), len(block.Bytes), refused, harmless)
		if refused == 0 {
			t.Errorf("no flip in %s is refused", filepath.Base(name))
		}
	}
}

// shake does the handshake of the peer port between two nodes, once each way.
func shake(a, b *Credentials) error {
	return errors.Join(shakeOnce(a, b), shakeOnce(b, a))
}

func shakeOnce(server, client *Credentials) error {
	near, far := net.Pipe()
	defer func() { _ = near.Close() }()
	_ = near.SetDeadline(time.Now().Add(handshakeTimeout)) // both may have an alert to write, and nobody to read it
	_ = far.SetDeadline(time.Now().Add(handshakeTimeout))
	served := make(chan error, 1)
	go func() { served <- tls.Server(near, server.server()).Handshake() }()
	err := tls.Client(far, client.client(protoCalls)).Handshake()
	_ = far.Close() // a server that refuses the client says so now, and to nobody
	return errors.Join(err, <-served)
}
