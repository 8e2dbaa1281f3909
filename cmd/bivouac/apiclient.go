package main

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/client"
)

const (
	// defaultAddress is the address of the first node of `bivouac dev`.
	defaultAddress = "http://127.0.0.1:8440"
	clientTimeout  = time.Minute
	// nextNodeTime is how long a node may take to accept a connection, and to begin to answer a
	// read, where there is another.
	nextNodeTime = 3 * time.Second
)

// apiFlags are the flags of every command that calls a node's HTTP API.
type apiFlags struct {
	address, keyFile, caFile string
	asJSON                   bool
}

func (f *apiFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.address, "address", "",
		"nodes' URLs, with commas, tried in turn (default $BIVOUAC_ADDR, the login's, or "+defaultAddress+")")
	cmd.Flags().StringVar(&f.keyFile, "api-key-file", "",
		"file that holds an API key (default: the key itself in $BIVOUAC_API_KEY, or the login's)")
	cmd.Flags().StringVar(&f.caFile, "ca-file", "",
		"CA certificate to trust for https (default $BIVOUAC_CACERT, the login's, or the system's)")
}

func (f *apiFlags) registerJSON(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
}

// client makes the client that the flags, the environment and the login describe. The key is never
// an argument: every user of the machine can read arguments.
func (p *program) client(f *apiFlags) (*client.Client, error) {
	to, err := p.target(f)
	if err != nil {
		return nil, err
	}
	if to.APIKey == "" {
		return nil, usagef("an API key is needed: run bivouac login, set BIVOUAC_API_KEY or give --api-key-file")
	}
	return to.client()
}

// target says which nodes a command calls, and how. Flags come before the environment, and that
// before the login, whose key is sent to its own addresses only.
func (p *program) target(f *apiFlags) (login, error) {
	var to login
	var err error
	if to.APIKey, err = p.apiKey(f); err != nil {
		return login{}, err
	}
	if to.Addresses, err = p.addresses(f); err != nil {
		return login{}, err
	}
	var kept login
	if to.APIKey == "" || len(to.Addresses) == 0 {
		if kept, err = p.readLogin(); err != nil {
			return login{}, err
		}
	}
	if len(to.Addresses) == 0 {
		to.Addresses = kept.Addresses
	}
	if len(to.Addresses) == 0 {
		to.Addresses = []string{defaultAddress}
	}
	if kept.is(to.Addresses) {
		to.CACert = kept.CACert
		if to.APIKey == "" {
			to.APIKey = kept.APIKey
		}
	}
	if file := f.caFile; file != "" {
		to.CACert = file
	} else if file := p.getenv("BIVOUAC_CACERT"); file != "" {
		to.CACert = file
	}
	if to.CACert != "" { // the login is used in other directories
		if to.CACert, err = filepath.Abs(to.CACert); err != nil {
			return login{}, usagef("--ca-file: %w", err)
		}
	}
	return to, nil
}

// addresses returns those of the flag or of the environment, none without either.
func (p *program) addresses(f *apiFlags) ([]string, error) {
	text := f.address
	if text == "" {
		text = p.getenv("BIVOUAC_ADDR")
	}
	if text == "" {
		return nil, nil
	}
	var list []string
	for one := range strings.SplitSeq(text, ",") {
		one = strings.TrimSpace(one)
		if err := isHTTPAddress(one); err != nil {
			return nil, usagef("--address: %w", err)
		}
		list = append(list, strings.TrimRight(one, "/"))
	}
	return list, nil
}

// apiKey returns the key of the file or of the environment, "" without one.
func (p *program) apiKey(f *apiFlags) (string, error) {
	return p.keyOf("BIVOUAC_API_KEY", "--api-key-file", f.keyFile)
}

// keyOf returns the key in the file of a flag, or without a file in a variable of the environment.
func (p *program) keyOf(variable, flag, file string) (string, error) {
	if file == "" {
		return strings.TrimSpace(p.getenv(variable)), nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", usagef("%s: %s", flag, oneLine(err))
	}
	return strings.TrimSpace(string(b)), nil
}

// clientTransport trusts the CA of a file, or the system's. With others to ask, a node that accepts
// no connection is given up soon.
func clientTransport(caFile string, others bool) (*http.Transport, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if others {
		t.DialContext = (&net.Dialer{Timeout: nextNodeTime}).DialContext
	}
	if caFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, usagef("--ca-file: %s", oneLine(err))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usagef("--ca-file: %s holds no certificate", caFile)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t, nil
}
