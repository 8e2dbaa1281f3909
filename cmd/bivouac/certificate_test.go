package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
)

// paper is a certificate and its key in files, and its CA.
type paper struct {
	ca                peernet.PEM
	certFile, keyFile string
}

func newPaper(t testing.TB) *paper {
	t.Helper()
	ca, err := peernet.NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &paper{ca: ca, certFile: filepath.Join(dir, "http.pem"), keyFile: filepath.Join(dir, "http-key.pem")}
	p.write(t, p.issue(t))
	return p
}

func (p *paper) issue(t testing.TB) peernet.PEM {
	t.Helper()
	pair, err := peernet.Issue(p.ca, "api", []string{"127.0.0.1"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func (p *paper) write(t testing.TB, pair peernet.PEM) {
	t.Helper()
	if err := errors.Join(os.WriteFile(p.certFile, pair.Certificate, 0o600),
		os.WriteFile(p.keyFile, pair.Key, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// touch sets the files' times: a file system's clock may not have advanced since the last
// change.
func (p *paper) touch(at time.Time) {
	for _, name := range []string{p.certFile, p.keyFile} {
		_ = os.Chtimes(name, at, at)
	}
}

// The start fails with damaged files of the HTTP port: the error names the file and the way
// out. A running server keeps its pair, logs the reason once, and loads the repaired files.
func TestCertificate_DamagedFilesAreNamedAndNotTaken(t *testing.T) {
	other := newPaper(t)
	otherPair := other.issue(t)
	put := func(raw []byte) func(string) error {
		return func(name string) error { return os.WriteFile(name, raw, 0o600) }
	}
	for name, harm := range map[string]struct {
		key  bool
		do   func(name string) error
		says string
	}{
		"an empty certificate":             {false, put(nil), "is empty"},
		"an empty key":                     {true, put([]byte("\n")), "is empty"},
		"half a certificate":               {false, cutHalf, "is damaged"},
		"half a key":                       {true, cutHalf, "is damaged"},
		"a key with a bit flipped":         {true, flipBit, "is not the key of the certificate in"},
		"another certificate":              {false, put(otherPair.Certificate), "is not the key of the certificate in"},
		"another key":                      {true, put(otherPair.Key), "is not the key of the certificate in"},
		"a key for the certificate":        {false, put(otherPair.Key), "no certificate in"},
		"a certificate for the key":        {true, put(otherPair.Certificate), "holds no private key"},
		"no certificate":                   {false, os.Remove, "no such file"},
		"no key":                           {true, os.Remove, "no such file"},
		"a certificate that can't be read": {false, makeDir, "is a directory"},
		"a key that can't be read":         {true, makeDir, "is a directory"},
		"text":                             {false, put([]byte("not a certificate\n")), "no certificate in"},
		"half a chain": {
			false,
			put(append(otherPair.Certificate, other.ca.Certificate[:200]...)),
			"is damaged",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPaper(t)
			var log bytes.Buffer
			running, err := loadCertificate(p.certFile, p.keyFile, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			before, _ := running.get(nil)
			file := p.certFile
			if harm.key {
				file = p.keyFile
			}
			if err := harm.do(file); err != nil {
				t.Fatal(err)
			}
			_, err = loadCertificate(p.certFile, p.keyFile, slog.New(slog.DiscardHandler))
			for _, want := range []string{file, harm.says, "; put "} {
				if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("at the start: %v\nwant one line with %q", err, want)
				}
			}
			for i := range 3 {
				p.touch(time.Now().Add(time.Duration(i) * time.Minute))
				if now, err := running.get(nil); err != nil || now != before {
					t.Fatalf("the running server has %v, %v", now, err)
				}
			}
			if strings.Count(log.String(), "level=ERROR") != 1 || !strings.Contains(log.String(), file) {
				t.Errorf("want one line of an error that names %s:\n%s", file, log.String())
			}
			mended := p.issue(t)
			if err := os.RemoveAll(file); err != nil {
				t.Fatal(err)
			}
			p.write(t, mended)
			p.touch(time.Now().Add(time.Hour))
			now, err := running.get(nil)
			block, _ := pem.Decode(mended.Certificate)
			if err != nil || !bytes.Equal(now.Certificate[0], block.Bytes) {
				t.Errorf("the mended files are not taken: %v", err)
			}
		})
	}
}

func cutHalf(name string) error {
	raw, err := os.ReadFile(name)
	return errors.Join(err, os.WriteFile(name, raw[:len(raw)/2], 0o600))
}

// flipBit flips one bit of a PEM file that a check must detect: in a node's certificate one of
// the serial number, which only the signature covers; in a CA's, whose own signature is not
// verified, one of the public key; in a key file one of the private key, because the file also
// has the public one.
func flipBit(name string) error {
	raw, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(raw)
	field, err := vitalField(block)
	if err != nil {
		return err
	}
	at := bytes.Index(block.Bytes, field)
	if at < 0 || len(field) < 8 {
		return fmt.Errorf("%s: the field is not found", name)
	}
	block.Bytes[at+len(field)/2] ^= 1
	return os.WriteFile(name, pem.EncodeToMemory(block), 0o600)
}

// vitalField returns the content of the field that flipBit damages.
func vitalField(block *pem.Block) ([]byte, error) {
	if block.Type == "CERTIFICATE" {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if !c.IsCA {
			return c.SerialNumber.Bytes(), nil
		}
		public, err := c.PublicKey.(*ecdsa.PublicKey).Bytes()
		return public, err
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	return key.(*ecdsa.PrivateKey).Bytes()
}

// makeDir makes a file unreadable, for root too.
func makeDir(name string) error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o700)) }

// Whichever bit of the files' DER is flipped: the pair is rejected with its file's name, or
// every client rejects it, or it works as before.
func TestCertificate_NoFlippedBitReachesAClient(t *testing.T) {
	p := newPaper(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.ca.Certificate)
	raw, err := os.ReadFile(p.certFile)
	if err != nil {
		t.Fatal(err)
	}
	good, _ := pem.Decode(raw)
	for _, name := range []string{p.certFile, p.keyFile} {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(whole)
		refused, byClients, harmless := 0, 0, 0
		for i := range block.Bytes {
			damaged := slices.Clone(block.Bytes)
			damaged[i] ^= 1 << (i % 8)
			if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: damaged}), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := loadCertificate(p.certFile, p.keyFile, slog.New(slog.DiscardHandler))
			if err != nil {
				refused++
				if !strings.Contains(err.Error(), filepath.Dir(name)) {
					t.Errorf("byte %d of %s: %v, which names no file", i, name, err)
				}
				continue
			}
			switch shown, err := shownTo(t, roots, c); {
			case err != nil:
				byClients++
			case !bytes.Equal(shown, good.Bytes):
				t.Errorf("byte %d of %s is flipped, and a client takes it", i, name)
			default:
				harmless++
			}
		}
		if err := os.WriteFile(name, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: of %d flips %d are refused, %d more by clients, %d harmless", filepath.Base(name), len(block.Bytes),
			refused, byClients, harmless)
		if refused == 0 || name == p.certFile && (byClients == 0 || harmless != 0) ||
			name == p.keyFile && (byClients != 0 || harmless == 0) {
			t.Error("that is not what is expected of this file")
		}
	}
}

// shownTo returns the certificate that a client with these roots accepts.
func shownTo(t *testing.T, roots *x509.CertPool, c *fileCertificate) ([]byte, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		if conn, err := l.Accept(); err == nil {
			_ = tls.Server(conn, c.serverTLS()).Handshake() // the client reports the result
			_ = conn.Close()
		}
	}()
	client, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: roots})
	<-served
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.ConnectionState().PeerCertificates[0].Raw, nil
}

// A node with a damaged file does not start: one line, the file's name, exit code 1.
func TestServer_DamagedCertificatesKeepItFromStarting(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	secure := newServers(t,
		serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t), https: true})
	for _, test := range []struct {
		s    *serverCluster
		node int
		file string
		do   func(string) error
	}{
		{s, 0, "n1-key.pem", cutHalf}, {s, 1, "n2.pem", flipBit},
		{secure, 0, "n1.pem", cutHalf}, {secure, 1, "n2-key.pem", flipBit},
		{s, 2, "ca.pem", flipBit}, // n3's own files are valid
	} {
		file := filepath.Join(test.s.dir, "tls", test.file)
		if err := test.do(file); err != nil {
			t.Fatal(err)
		}
		n := test.s.nodes[test.node]
		n.start()
		code := n.process.wait(t)
		last := strings.TrimSpace(n.process.stderr.String())
		last = last[strings.LastIndex(last, "\n")+1:]
		if code != 1 || !strings.Contains(last, file) || !strings.Contains(last, "; put ") {
			t.Errorf("%s of %s: exit %d: %s", test.file, n.name, code, n.process.stderr.String())
		}
	}
}
