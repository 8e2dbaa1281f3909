package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/scheduler/durable"
)

func (p *program) keysBootstrapCommand() *cobra.Command {
	var configFile, user, name, out string
	var reset bool
	cmd := &cobra.Command{
		Use:   "bootstrap --config FILE --out FILE",
		Short: "Issue the first API key of a new cluster",
		Long: `Issue the first API key of a new cluster: an operator's key, kept nowhere but in
the file that --out names, or printed to stdout. It is asked for over the peer
port, with the certificate of the node whose configuration is given, so it must
run where a node runs. It is refused while the cluster has an operator's key that
is neither revoked nor suspended.

Where all operators' keys are lost, --reset issues another beside them. The leader
asks for a file on its own disk first; the error names the file and its content.
"bivouac runbook lost-key" has the steps.

With --out the key is on the disk, readable by its owner only, before it is
issued, so that it can't be lost in between; the command can be repeated with the
same file until it succeeds. A key that can't be printed to stdout is revoked.`,
		Example: `  bivouac keys bootstrap --config /etc/bivouac/node.hcl --out operator.key`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(configFile)
			if err != nil {
				return err
			}
			key, made, err := bootstrapKey(out)
			if err != nil {
				return err
			}
			body := bootstrapBody(key, user, name)
			body.Reset = reset
			issue := func(ctx context.Context) error { return p.bootstrap(ctx, cfg, key, body, out == "") }
			err = withProgress(cmd.Context(), p.stderr, "waiting for the cluster", issue)
			if refused := errors.Is(err, errHasFirstKey) || fsm.CodeOf(err) == fsm.CodeForbidden; refused && made {
				err = errors.Join(err, os.Remove(out))
			}
			if err != nil {
				return fmt.Errorf("issuing the first key: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&configFile, "config", "", "the configuration of a node on this machine")
	cmd.Flags().StringVar(&user, "user", "admin", "the user the key belongs to")
	cmd.Flags().StringVar(&name, "name", "bootstrap", "what the key is for")
	cmd.Flags().StringVar(&out, "out", "", "write the key to this file before it is issued, instead of to stdout")
	cmd.Flags().BoolVar(&reset, "reset", false,
		"issue a key beside operators' keys that are lost; the leader asks for a file on its disk")
	mustRequire(cmd, "config")
	return cmd
}

// bootstrapKey returns the cluster's first key. An existing file holds the key of an earlier
// attempt. Otherwise the key is new and, if a file is named, written to it: then made is true.
func bootstrapKey(file string) (key apikey.Key, made bool, err error) {
	if file != "" {
		text, err := readKeyFile(file)
		switch {
		case err == nil:
			if key, err = apikey.Parse(strings.TrimSpace(string(text))); err != nil {
				return key, false, fmt.Errorf("%s is there and holds no key: name another file", file)
			}
			return key, false, nil
		case !errors.Is(err, os.ErrNotExist):
			return key, false, fmt.Errorf("looking for an earlier key: %w", err)
		}
	}
	if key, err = newAPIKey(); err != nil || file == "" {
		return key, false, err
	}
	return key, true, durable.Replace(file, []byte(key.Value+"\n"), 0o600)
}

// maxKeyFile bounds the read of a key file: a device such as /dev/zero has no end.
const maxKeyFile = 4 << 10

// readKeyFile reads at most maxKeyFile bytes of a file.
func readKeyFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxKeyFile))
}

// bootstrap issues the key and prints it if asked to. If the key could not be shown it is
// revoked, so that another one can be issued.
func (p *program) bootstrap(
	ctx context.Context,
	cfg Config,
	key apikey.Key,
	body *fsm.APIKeyCreateBody,
	show bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()
	client, err := peerClient(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	res, err := proposeUntilKnown(ctx, client, body)
	if fsm.CodeOf(err) == fsm.CodeConflict {
		return errHasFirstKey
	}
	if err != nil || !show {
		return err
	}
	_, unseen := fmt.Fprintln(p.stdout, key.Value)
	if unseen == nil || res.APIKey == nil {
		return unseen
	}
	ctx = cluster.AsOperator(ctx, cluster.Operator{UserID: body.UserID, Lookup: key.Lookup, Key: key.Value})
	if _, err := proposeUntilKnown(ctx, client, &fsm.APIKeyRevokeBody{ID: res.APIKey.ID}); err != nil {
		return errors.Join(fmt.Errorf("the key could not be printed: %w", unseen), fmt.Errorf("and not be revoked: %w", err))
	}
	return fmt.Errorf("the key could not be printed and is revoked; run this again, with --out FILE: %w", unseen)
}

var errHasFirstKey = errors.New("this cluster has an operator's key that may be used; use it, " +
	"with \"bivouac keys create\"; if it is lost, add --reset")

// proposeUntilKnown proposes a command through the peer port and retries until its outcome is
// known. It waits for a leader. Each attempt sends the same command id, so the command is
// applied once.
func proposeUntilKnown(ctx context.Context, client *cluster.PeerClient, body fsm.Body) (fsm.Result, error) {
	id := uuid.NewString()
	for {
		res, err := client.Propose(ctx, fsm.NewCommand(id, time.Now(), "", body))
		switch fsm.CodeOf(err) {
		case "":
			return res, nil
		case fsm.CodeNoLeader, fsm.CodeOutcomeUnknown, fsm.CodeTimeout, fsm.CodeShuttingDown:
		default:
			return res, err
		}
		select {
		case <-time.After(bootstrapRetry):
		case <-ctx.Done():
			return res, fmt.Errorf("no answer within %d s: %w", int(bootstrapTimeout.Seconds()), err)
		}
	}
}
