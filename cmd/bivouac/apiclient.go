package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/client"
)

// defaultAddress is the address of the first node of `bivouac dev`.
const defaultAddress = "http://127.0.0.1:8440"

// apiFlags are the flags of every command that calls a node's HTTP API.
type apiFlags struct {
	address, keyFile, caFile string
	asJSON                   bool
}

func (f *apiFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.address, "address", "", "a node's URL (default $BIVOUAC_ADDR, or "+defaultAddress+")")
	cmd.Flags().StringVar(&f.keyFile, "api-key-file", "",
		"file that holds an operator's API key (default: the key itself in $BIVOUAC_API_KEY)")
	cmd.Flags().StringVar(&f.caFile, "ca-file", "", "CA certificate to trust for https (default: the system's)")
}

func (f *apiFlags) registerJSON(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
}

// client makes the client that the flags and the environment describe. The key is never an
// argument: every user of the machine can read arguments.
func (p *program) client(f *apiFlags) (*client.Client, error) {
	c := &client.Client{Address: f.address}
	if c.Address == "" {
		c.Address = p.getenv("BIVOUAC_ADDR")
	}
	c.Address = cmp.Or(c.Address, defaultAddress)
	if err := isHTTPAddress(c.Address); err != nil {
		return nil, usagef("--address: %w", err)
	}
	c.Address = strings.TrimRight(c.Address, "/")
	key, err := p.apiKey(f)
	if err != nil {
		return nil, err
	}
	if c.Key = key; c.Key == "" {
		return nil, usagef("an operator's API key is needed: set BIVOUAC_API_KEY or give --api-key-file")
	}
	transport, err := clientTransport(f.caFile)
	if err != nil {
		return nil, err
	}
	c.HTTP = &http.Client{Transport: transport, Timeout: time.Minute}
	return c, nil
}

// apiKey returns the key of the file or of the environment, "" without one.
func (p *program) apiKey(f *apiFlags) (string, error) {
	if f.keyFile == "" {
		return strings.TrimSpace(p.getenv("BIVOUAC_API_KEY")), nil
	}
	b, err := os.ReadFile(f.keyFile)
	if err != nil {
		return "", usagef("--api-key-file: %s", oneLine(err))
	}
	return strings.TrimSpace(string(b)), nil
}

func clientTransport(caFile string) (*http.Transport, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
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
