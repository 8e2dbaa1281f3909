package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

const operatorPath = "/api/v1/operator/"

// leaderPause is how often a node is asked who leads.
const leaderPause = 100 * time.Millisecond

func (p *program) membersCommand(use string) *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   use,
		Short: "Show the members of the cluster, and how they are",
		Long: `Show the members of the cluster. Each is asked how it is; one that does not answer
within a second says why. LAG is how many log entries a member lacks, CONTACT how
long ago the leader heard it, EVENTS how many bytes of events it lacks and fetches,
CERT the days left of its first certificate to end, SECRET ID
those of its secret id in Vault.
A newcomer beside a voter that is silent stays a
nonvoter until that answers, is removed or replaced, or was silent for dead_after.
See "bivouac runbook members".`,
		Example: "  bivouac operator " + use + "\n  bivouac operator " + use + " --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var page wire.Page[cluster.Member]
			if err := p.waiting(cmd, c, http.MethodGet, operatorPath+"members", nil, &page); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, page.Items)
			}
			return printMembers(p.stdout, page.Items)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func printMembers(w io.Writer, members []cluster.Member) error {
	rows := make([][]string, len(members))
	for i, m := range members {
		lag, contact, version := "", "never", ""
		if m.Lag != nil {
			lag = strconv.FormatUint(*m.Lag, 10)
		}
		if m.LastContact != nil {
			contact = (time.Duration(*m.LastContact) * time.Millisecond).Round(100 * time.Millisecond).String()
		}
		if m.KnownVersion > 0 {
			version = strconv.Itoa(m.KnownVersion)
		}
		state := "answers"
		if m.Error != "" {
			state = "silent"
		}
		cert, secretID := "", ""
		if m.Report != nil {
			cert, secretID = certificateText(m.Report.Certificates), secretIDText(m.Report, time.Now())
		}
		rows[i] = []string{m.Name, m.Role, state, contact, lag, eventsText(m), version, cert, secretID, m.Address, m.ID}
	}
	heading := []string{
		"NODE", "ROLE", "STATE", "CONTACT", "LAG", "EVENTS", "VERSION", "CERT", "SECRET ID", "PEER ADDRESS", "ID",
	}
	if err := printTable(w, heading, rows); err != nil {
		return err
	}
	for _, m := range members {
		if m.Error != "" {
			if _, err := fmt.Fprintf(w, "\n%s: %s\n", m.Name, m.Error); err != nil {
				return err
			}
		}
	}
	return nil
}

// eventsText is how much a member lacks of the events.
func eventsText(m cluster.Member) string {
	switch {
	case m.Error != "":
		return ""
	case m.EventsMissing < 0:
		return "not known yet"
	case m.EventsMissing > 0:
		return "lacks " + sizeText(m.EventsMissing)
	}
	return "all"
}

func (p *program) transferCommand(use string) *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   use + " [NODE]",
		Short: "Have another member lead",
		Long: `Have the leader hand over to the named voter, or to the one that has all events and
most of the log, and say which leads then. Nothing is lost: what clients ask meanwhile waits for
the next leader.`,
		Example: "  bivouac operator " + use + "\n  bivouac operator " + use + " n2",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := map[string]any{}
			if len(args) > 0 {
				if err := isNodeName(args[0]); err != nil {
					return usagef("%w", err)
				}
				in["to"] = args[0]
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			former, err := nextLeader(cmd.Context(), c, "")
			if err != nil {
				return err
			}
			if err := p.waiting(cmd, c, http.MethodPut, operatorPath+"transfer-leader", in, nil); err != nil {
				return fmt.Errorf("handing leadership over: %w", err)
			}
			if in["to"] == former {
				former = ""
			}
			leader, err := nextLeader(cmd.Context(), c, former)
			if err != nil {
				return err
			}
			return p.done(&api, map[string]any{"transferred": true, "to": in["to"], "leader": leader}, "node %q leads now",
				leader)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

// nextLeader asks the node until it knows a leader that is not the former.
func nextLeader(ctx context.Context, c *client.Client, former string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	tick := time.NewTicker(leaderPause)
	defer tick.Stop()
	for {
		var status wire.Status
		err := c.Call(ctx, http.MethodGet, operatorPath+"status", nil, &status)
		if err == nil && status.Leader != "" && status.Leader != former {
			return status.Leader, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("who leads is not known: %w", errors.Join(err, ctx.Err()))
		case <-tick.C:
		}
	}
}

// removeFlags are the flags of the commands that remove a member.
type removeFlags struct {
	cluster.RemoveOptions
	yes bool
}

func (f *removeFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.Force, "force", false, "remove it although the members that answer and remain are no majority")
	cmd.Flags().BoolVar(&f.Revoke, "revoke", false,
		"refuse all its certificates from then on, those that it makes later included")
	cmd.Flags().StringVar(&f.Fingerprint, "fingerprint", "",
		"with --revoke: refuse only the certificate with this SHA-256 (bivouac tls show FILE)")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
}

// check normalizes the fingerprint.
func (f *removeFlags) check() error {
	if f.Fingerprint == "" {
		return nil
	}
	text := f.Fingerprint
	if _, value, ok := strings.Cut(text, "="); ok { // openssl prints "name=value"
		text = value
	}
	text = strings.ToLower(strings.ReplaceAll(strings.TrimSpace(text), ":", ""))
	if len(text) != 64 || strings.Trim(text, "0123456789abcdef") != "" {
		return usagef("--fingerprint must be a SHA-256 in hex, with or without colons")
	}
	if !f.Revoke {
		return usagef("--fingerprint goes with --revoke")
	}
	f.Fingerprint = text
	return nil
}

func (p *program) removeCommand(use string) *cobra.Command {
	var api apiFlags
	var flags removeFlags
	var configFile string
	cmd := &cobra.Command{
		Use:   use + " NODE",
		Short: "Take a node out of the cluster for good",
		Long: `Take a node out of the cluster for good, for example one whose machine is lost.
The removed node must be stopped; to come back it needs an empty data directory.
It is refused when the voters that answer, have all events and remain are no majority
of what is left, since the cluster would stop: start or remove the silent ones first,
and wait for what others lack. The only node that has all events is never removed
while it answers.

With --config it is asked for over the peer port, with the certificate of the node
whose configuration is given, and no key is needed; that may be any node that runs.`,
		Example: "  bivouac operator " + use + " n3\n  bivouac operator " + use + " n3 --revoke " +
			"--yes\n  bivouac operator " + use + " n3 --config /etc/bivouac/node.hcl",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := isNodeName(args[0]); err != nil {
				return usagef("%w", err)
			}
			if err := flags.check(); err != nil {
				return err
			}
			if err := p.confirm(flags.yes, "Take node %q out of the cluster for good?%s", args[0], flags.warning()); err != nil {
				return err
			}
			if err := p.remove(cmd, &api, configFile, args[0], flags.RemoveOptions); err != nil {
				return fmt.Errorf("removing node %s: %w", args[0], err)
			}
			return p.done(&api, map[string]any{"removed": args[0], "revoked": flags.Revoke}, "node %q is out of the cluster",
				args[0])
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	flags.register(cmd)
	cmd.Flags().StringVar(&configFile, "config", "",
		"the configuration of a node on this machine, to ask over the peer port")
	return cmd
}

// warning describes the other effects of a removal.
func (f *removeFlags) warning() (text string) {
	if f.Force {
		text += " With --force the cluster may be left without a leader."
	}
	if f.Revoke {
		text += " Its certificates are refused from then on."
	}
	return text
}

// remove calls the API or, with a node's configuration, the peer port.
func (p *program) remove(cmd *cobra.Command, api *apiFlags, configFile, name string, o cluster.RemoveOptions) error {
	if configFile == "" {
		c, err := p.client(api)
		if err != nil {
			return err
		}
		return p.waiting(cmd, c, http.MethodPut, operatorPath+"remove", removal(map[string]any{"name": name}, o), nil)
	}
	cfg, err := loadConfig(configFile)
	if err != nil {
		return err
	}
	value, err := p.apiKey(api)
	if err != nil {
		return err
	}
	return withProgress(cmd.Context(), p.stderr, "waiting for the cluster", func(ctx context.Context) error {
		client, err := peerClient(cfg)
		if err != nil {
			return err
		}
		defer client.Close()
		if key, err := apikey.Parse(value); err == nil {
			ctx = cluster.AsOperator(ctx, cluster.Operator{Lookup: key.Lookup, Key: key.Value})
		}
		return client.RemoveServer(ctx, name, o)
	})
}

// removal adds the options to a request.
func removal(in map[string]any, o cluster.RemoveOptions) map[string]any {
	in["force"], in["revoke"] = o.Force, o.Revoke
	if o.Fingerprint != "" {
		in["fingerprint"] = o.Fingerprint
	}
	return in
}

func (p *program) replaceCommand() *cobra.Command {
	var api apiFlags
	var flags removeFlags
	cmd := &cobra.Command{
		Use:   "replace OLD NEW",
		Short: "Have a new node vote in the place of another, which is removed",
		Long: `Have the node NEW vote in the place of the node OLD, which is taken out for good,
without waiting for dead_after. NEW must have joined first: start it with retry_join
and an empty data directory. It is promoted before OLD is removed, so that no moment
tolerates less than the one before.`,
		Example: "  bivouac operator replace n1 n4\n  bivouac operator replace n1 n4 --revoke --yes",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := isNodeName(name); err != nil {
					return usagef("%w", err)
				}
			}
			if err := flags.check(); err != nil {
				return err
			}
			if err := p.confirm(flags.yes, "Take node %q out of the cluster for good, with %q in its place?%s", args[0],
				args[1], flags.warning()); err != nil {
				return err
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			in := removal(map[string]any{"old": args[0], "new": args[1]}, flags.RemoveOptions)
			if err := p.waiting(cmd, c, http.MethodPut, operatorPath+"replace", in, nil); err != nil {
				return fmt.Errorf("replacing node %s: %w", args[0], err)
			}
			return p.done(&api, map[string]any{"removed": args[0], "voter": args[1], "revoked": flags.Revoke},
				"node %q votes in the place of %q, which is out of the cluster", args[1], args[0])
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	flags.register(cmd)
	return cmd
}

func (p *program) allowCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "allow NODE",
		Short: "Accept a node's certificates again, after remove --revoke",
		Long: `Accept the certificates of a node again, all of which "remove --revoke" refused. Do
it when a machine of that name shall join, and whoever had the former one can make no
certificate any more: see "bivouac runbook members".`,
		Example: "  bivouac operator allow n3",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := isNodeName(args[0]); err != nil {
				return usagef("%w", err)
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if err := p.waiting(cmd, c, http.MethodPut, operatorPath+"allow", map[string]any{"name": args[0]}, nil); err != nil {
				return fmt.Errorf("allowing node %s: %w", args[0], err)
			}
			return p.done(&api, map[string]any{"allowed": args[0]}, "certificates of node %q are accepted again", args[0])
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

// raftCommand offers the command names of Consul and Nomad.
func (p *program) raftCommand() *cobra.Command {
	peers := p.membersCommand("raft list-peers")
	remove := p.removeCommand("raft remove-peer")
	transfer := p.transferCommand("raft transfer-leadership")
	peers.Use, remove.Use, transfer.Use = "list-peers", "remove-peer NODE", "transfer-leadership [NODE]"
	return groupCommand("raft", "The same under the names that Consul and Nomad use", peers, remove, transfer)
}
