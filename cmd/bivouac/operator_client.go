package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

const clientsPath = "/api/v1/operator/clients"

// drainIs reports whether a drain is that far.
func drainIs(d wire.DrainProgress, drain string) bool { return d.Drain != nil && *d.Drain == drain }

// drainTrouble says what is wrong with the drain of a client, "" for nothing.
func drainTrouble(d wire.DrainProgress, client string) string {
	switch {
	case d.Failure == nil:
		return ""
	case drainIs(d, fsm.DrainStopped):
		return fmt.Sprintf(
			"the drain of the Nomad client %s stopped, and what it paused is resumed there: %s (bivouac runbook drain)",
			client,
			*d.Failure,
		)
	}
	return fmt.Sprintf("the drain of the Nomad client %s leaves %d sandboxes there: %s (bivouac runbook drain)", client,
		len(d.Stays), *d.Failure)
}

func (p *program) clientCommand() *cobra.Command {
	return groupCommand("client", "See, drain and give up the Nomad clients that run sandboxes",
		p.clientListCommand(),
		p.clientMarkCommand("drain", "Move the sandboxes of a client to others",
			`Pause what runs on a Nomad client, move its workspaces to other clients, and resume
it there. It asks first whether that can be done, moves one workspace, and then the
others; this command waits for the first. When it can't be done, what was paused is
resumed where it was, and the command says why. Each workspace is checked on the way,
and stays where it is until the other is complete. A change of the leader only delays
it: "bivouac operator client list" shows how far it is. Nomad itself is left alone:
leave the client eligible until nothing is left on it, because what reads the
workspaces runs there.
See "bivouac runbook drain".`,
			"Move all sandboxes off client %s?", "client %s is drained; follow it with: bivouac operator client list"),
		p.clientMarkCommand("lost", "Say that a client is gone for good",
			`Say that the machine of a Nomad client and its disk are gone for good. What should run
there gets a workspace on another client from its last copy. What was written after
the copy is gone. A client that Nomad reaches is not lost. Make sure that the machine
is off: if it comes back, its sandboxes run a moment beside their successors.
See "bivouac runbook client-lost".`,
			"Is the machine of client %s gone for good? What was written after the last copies is lost.",
			"client %s is lost; its sandboxes come back from their copies: bivouac operator client list"),
		p.clientMarkCommand("enable", "End the drain or the loss of a client",
			`End the mark of a client that was drained or lost. Workspaces that were moved stay
where they are now.`, "", "client %s takes sandboxes again"))
}

func (p *program) clientListCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the clients, what they have, and how far a drain is",
		Example: `  bivouac operator client list
  bivouac operator client list --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var page wire.Page[wire.Client]
			if err := p.waiting(cmd, c, http.MethodGet, clientsPath, nil, &page); err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, page.Items)
			}
			rows := make([][]string, len(page.Items))
			for i, one := range page.Items {
				rows[i] = clientRow(one)
			}
			return printTable(p.stdout,
				[]string{
					"ID",
					"NAME",
					"STATUS",
					"MARK",
					"WORKSPACES",
					"RUNNING",
					"MOVING",
					"NO COPY",
					"CPU FREE",
					"MEMORY FREE",
				}, rows)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

func clientRow(c wire.Client) []string {
	status, mark := c.Status, "-"
	switch {
	case status == "":
		status = "unknown to Nomad"
	case status == "ready" && !c.Eligible:
		status = "ready, ineligible"
	}
	if c.Mark != nil {
		mark = *c.Mark
	}
	if c.Drain != nil && !drainIs(c.DrainProgress, fsm.DrainAll) {
		mark += ", " + *c.Drain
	}
	return []string{
		c.ID, c.Name, status, mark, strconv.Itoa(c.Workspaces), strconv.Itoa(c.Running), strconv.Itoa(c.Moving),
		strconv.Itoa(c.WithoutCopy),
		fmt.Sprintf("%d/%d MHz", c.CPUFree, c.CPU), fmt.Sprintf("%d/%d MiB", c.MemoryFree, c.Memory),
	}
}

// clientMarkCommand marks a client. ask is "" for what needs no confirmation.
func (p *program) clientMarkCommand(act, short, long, ask, done string) *cobra.Command {
	var api apiFlags
	var yes bool
	cmd := &cobra.Command{
		Use: act + " CLIENT", Short: short, Long: long,
		Example: "  bivouac operator client " + act + " 8d6a0c02-5f2e-4b5e-9a3c-0b3a6f2c7d11",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if ask != "" {
				if err := p.confirm(yes, ask, args[0]); err != nil {
					return err
				}
			}
			if err := p.waiting(cmd, c, http.MethodPost, clientsPath+"/"+url.PathEscape(args[0])+"/"+act, nil, nil); err != nil {
				return err
			}
			if act == "drain" {
				if err := p.awaitFirst(cmd, c, args[0]); err != nil {
					return err
				}
			}
			return p.done(&api, map[string]string{"client": args[0], "act": act}, done, args[0])
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	if ask != "" {
		cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	}
	return cmd
}

// firstPatience is how long the command waits for the first workspace of a drain. A large one takes
// longer, and the drain goes on without the command.
const firstPatience = 10 * time.Minute

// awaitFirst waits until the first workspace has left a client that is drained, or none is there. It
// returns an error when the drain stops.
func (p *program) awaitFirst(cmd *cobra.Command, c *client.Client, id string) error {
	return withProgress(cmd.Context(), p.stderr, "moving the first workspace off "+id, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, firstPatience)
		defer cancel()
		for {
			var page wire.Page[wire.Client]
			if err := c.Call(ctx, http.MethodGet, clientsPath, nil, &page); err != nil {
				return fmt.Errorf("the client %s is marked, and how far its drain is can't be read: %w", id, err)
			}
			i := slices.IndexFunc(page.Items, func(one wire.Client) bool { return one.ID == id })
			if i < 0 || page.Items[i].Workspaces == 0 || !drainIs(page.Items[i].DrainProgress, fsm.DrainFirst) {
				if i >= 0 && drainIs(page.Items[i].DrainProgress, fsm.DrainStopped) {
					return errors.New(drainTrouble(page.Items[i].DrainProgress, id))
				}
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("the first workspace has not left the client %s yet; the drain goes on: "+
					"follow it with \"bivouac operator client list\"", id)
			case <-time.After(time.Second):
			}
		}
	})
}
