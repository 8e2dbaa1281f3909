package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/scheduler/durable"
)

// login is what `bivouac login` keeps.
type login struct {
	Addresses []string `json:"addresses"`
	APIKey    string   `json:"api_key"`
	CACert    string   `json:"ca_cert,omitempty"`
}

// is reports whether the login is for all these addresses: its key is sent nowhere else.
func (l login) is(addresses []string) bool {
	return len(l.Addresses) > 0 && !slices.ContainsFunc(addresses, func(a string) bool {
		return !slices.Contains(l.Addresses, a)
	})
}

// loginFile is the path of the login, "" where there is no home.
func (p *program) loginFile() string {
	dir := p.getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // the specification ignores a relative one
		home := p.getenv("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "bivouac", "login.json")
}

// readLogin returns the login, an empty one if there is none. A file that others can read is refused.
func (p *program) readLogin() (login, error) {
	path := p.loginFile()
	if path == "" {
		return login{}, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return login{}, nil
	}
	if err != nil {
		return login{}, usagef("the login: %s", oneLine(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return login{}, usagef("the login: %s", oneLine(err))
	}
	if info.Mode().Perm()&0o077 != 0 {
		return login{}, usagef("%s has an API key, and others can use it: chmod 600 %s", path, path)
	}
	var l login
	if err := json.NewDecoder(f).Decode(&l); err != nil {
		return login{}, usagef("%s is no login: %w", path, err)
	}
	return l, nil
}

func (p *program) loginCommand() *cobra.Command {
	var api apiFlags
	var withKey bool
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Keep an API key for the commands that follow",
		Long: `Get an API key, try it, and keep it with the nodes' addresses in one file of mode
0600: bivouac/login.json in $XDG_CONFIG_HOME, or in ~/.config. At a terminal a browser
that is signed in on the nodes' web page allows it, and it gets a key of its own. With
--with-key, and where the nodes have no web page, it asks for a key, which the terminal
does not show; elsewhere the key is the first line of stdin. The kept key is sent to the
kept addresses only. BIVOUAC_ADDR, BIVOUAC_API_KEY and BIVOUAC_CACERT come before
the file, flags before both.`,
		Example: `  bivouac login --address https://n1.example.org:8440,https://n2.example.org:8440
  bivouac login --ca-file ca.pem < key`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			to, err := p.target(&api)
			if err != nil {
				return err
			}
			if api.keyFile == "" {
				if to.APIKey, err = p.newKey(cmd.Context(), to, withKey); err != nil {
					return err
				}
			}
			if to.APIKey == "" {
				return usagef("an API key is needed: one line on stdin")
			}
			return p.logIn(cmd, &api, to)
		},
	}
	cmd.Flags().BoolVar(&withKey, "with-key", false, "ask for an API key instead of a browser's permission")
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

// newKey has a browser allow the terminal, which gets a key of its own. Elsewhere, and with typed, it
// reads a key.
func (p *program) newKey(ctx context.Context, to login, typed bool) (string, error) {
	if _, is := isTerminal(p.stdin); is && !typed {
		if key, err := p.deviceKey(ctx, to); !errors.Is(err, errNoDevices) {
			return key, err
		}
	}
	return p.readKey(ctx)
}

// logIn tries a key and keeps it.
func (p *program) logIn(cmd *cobra.Command, api *apiFlags, to login) error {
	c, err := to.client()
	if err != nil {
		return err
	}
	var me struct {
		ID string `json:"id"`
	}
	if err := p.waiting(cmd, c, http.MethodGet, "/api/v1/users/me", nil, &me); err != nil {
		return err
	}
	path := p.loginFile()
	if path == "" {
		return usagef("neither XDG_CONFIG_HOME nor HOME says where to keep the login")
	}
	text, err := json.MarshalIndent(to, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = durable.Replace(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("keeping the login: %w", err)
	}
	if p.getenv("BIVOUAC_API_KEY") != "" {
		fmt.Fprintln(p.stderr, "BIVOUAC_API_KEY is set and comes before the login")
	}
	at := strings.Join(to.Addresses, ",")
	return p.done(api, map[string]string{"user": me.ID, "address": at, "file": path},
		"logged in to %s as %s; the key is in %s", at, printable(me.ID), path)
}

// readKey asks for a key where stdin is a terminal, and reads its first line elsewhere.
func (p *program) readKey(ctx context.Context) (string, error) {
	f, is := isTerminal(p.stdin)
	if !is {
		line, err := bufio.NewReader(io.LimitReader(p.stdin, 4096)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("reading the API key: %w", err)
		}
		return strings.TrimSpace(line), nil
	}
	// The prompt comes when nothing is shown any more: what is pasted may be there before it.
	shown, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return "", fmt.Errorf("reading the API key: %w", err)
	}
	restore := func() { _ = term.Restore(int(f.Fd()), shown) }
	defer restore()
	defer context.AfterFunc(ctx, restore)() // told to stop
	key, err := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{f, p.stderr}, "").ReadPassword("API key: ")
	if errors.Is(err, io.EOF) { // Ctrl-C or Ctrl-D
		return "", exitStatus(exitInterrupted)
	}
	if err != nil {
		return "", fmt.Errorf("reading the API key: %w", err)
	}
	return strings.TrimSpace(key), nil
}

func (p *program) logoutCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "logout",
		Short: "Forget the API key that login keeps",
		Long: `Remove the file in which "bivouac login" keeps an API key. The key stays good: an
operator revokes it with "bivouac keys revoke".`,
		Example: "  bivouac logout",
		RunE: func(*cobra.Command, []string) error {
			path := p.loginFile()
			err := os.Remove(path)
			switch {
			case path == "" || errors.Is(err, fs.ErrNotExist):
				return p.done(&api, map[string]bool{"was_logged_in": false}, "there is no login")
			case err != nil:
				return fmt.Errorf("forgetting the login: %w", err)
			}
			return p.done(&api, map[string]bool{"was_logged_in": true}, "%s is removed; the key stays good", path)
		},
	}
	api.registerJSON(cmd)
	return cmd
}

// client makes the client of a login.
func (l login) client() (*client.Client, error) {
	base, err := clientTransport(l.CACert, len(l.Addresses) > 1)
	if err != nil {
		return nil, err
	}
	transport, err := client.NewAddresses(l.Addresses, base, nextNodeTime)
	if err != nil {
		return nil, err
	}
	return &client.Client{
		Address: l.Addresses[0], Key: l.APIKey, HTTP: &http.Client{Transport: transport, Timeout: clientTimeout},
	}, nil
}
