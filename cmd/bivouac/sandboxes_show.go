package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

// logged is the end of the help of commands about what users have.
const logged = " The nodes log the call with the id\nof the key."

func (p *program) sandboxesShowCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "show SANDBOX",
		Short: "Show your sandbox, or with an operator's key any user's",
		Long: "Show your sandbox, or with an operator's key any user's, with neither its key nor its\nURLs." +
			logged,
		Example: `  bivouac sandboxes show 5pYq0XbLr2kTc8Vn
  bivouac sandboxes show 5pYq0XbLr2kTc8Vn --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeSandbox(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var s wire.OwnedSandbox
			err = p.waiting(cmd, c, http.MethodGet, sandboxesPath+"/"+url.PathEscape(args[0]), nil, &s)
			if isNoOperator(err) {
				return p.showOwnSandbox(cmd, c, &api, args[0])
			}
			if err != nil {
				return err
			}
			if api.asJSON {
				return printJSON(p.stdout, s)
			}
			return printFacts(p.stdout, [][2]string{
				{"id", s.ID}, {"user", s.UserID}, {"spec", s.SpecID}, {"status", string(s.Status)},
				{"detail", deref(s.StatusDetail)}, {"isolation", string(s.Isolation)},
				{"nomad client", deref(s.NomadClient)}, {"created", formatTime(s.CreatedAt.Time)},
			})
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

// logFlags are the flags of `bivouac sandboxes logs`.
type logFlags struct {
	follow, previous bool
	stream           string
	tail             int
}

// query checks the flags and returns the query of the request.
func (f *logFlags) query() (url.Values, error) {
	switch {
	case f.stream != "all" && f.stream != "stdout" && f.stream != "stderr":
		return nil, usagef("--stream: %q must be one of \"all\", \"stdout\", \"stderr\"", f.stream)
	case f.tail < 0 || f.tail > 1<<20:
		return nil, usagef("--tail must be between 0 and %d, got %d", 1<<20, f.tail)
	case f.follow && f.previous:
		return nil, usagef("--previous is over: it can't be followed")
	}
	q := url.Values{"stream": {f.stream}, "tail": {strconv.Itoa(f.tail)}}
	if f.follow {
		q.Set("follow", "true")
	}
	if f.previous {
		q.Set("run", "previous")
	}
	return q, nil
}

func (p *program) sandboxesLogsCommand() *cobra.Command {
	var api apiFlags
	var f logFlags
	cmd := &cobra.Command{
		Use:   "logs SANDBOX",
		Short: "Print what a sandbox wrote: your own, or with an operator's key any user's",
		Long: `Print the end of what a sandbox wrote, your own or with an operator's key any
user's, and with --follow what it writes from then on, until it stops. Where it wrote
to stdout and to stderr, each part says which it is. --previous prints the run before
the newest one: each start of a sandbox is a run. The nodes log an operator's call with
the id of the key.`,
		Example: `  bivouac sandboxes logs 5pYq0XbLr2kTc8Vn
  bivouac sandboxes logs --follow --tail 0 5pYq0XbLr2kTc8Vn
  bivouac sandboxes logs --previous --stream stderr 5pYq0XbLr2kTc8Vn`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeSandbox(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			query, err := f.query()
			if err != nil {
				return err
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			path := "/" + url.PathEscape(args[0]) + "/logs?" + query.Encode()
			return p.printLog(cmd.Context(), c, sandboxesPath+path, ownSandboxesPath+path)
		},
	}
	api.register(cmd)
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on with what it writes")
	cmd.Flags().BoolVar(&f.previous, "previous", false, "the run before the newest one")
	cmd.Flags().StringVar(&f.stream, "stream", "all", `"all", "stdout" or "stderr"`)
	cmd.Flags().IntVar(&f.tail, "tail", 64<<10, "how much of the end of each stream, in bytes")
	return cmd
}

// printFacts prints the names and values of one object. What is not printable is replaced.
func printFacts(w io.Writer, facts [][2]string) error {
	width := 0
	for _, f := range facts {
		width = max(width, len(f[0]))
	}
	for _, f := range facts {
		if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, f[0], orDash(printable(f[1]))); err != nil {
			return err
		}
	}
	return nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// listAll reads every page of an operators' listing: of all users, or of one.
func listAll[T any](cmd *cobra.Command, p *program, c *client.Client, path, user string) ([]T, error) {
	return listAllBy[T](cmd, p, c, path, url.Values{"user": {user}})
}

// listAllBy is listAll for a listing with other queries.
func listAllBy[T any](cmd *cobra.Command, p *program, c *client.Client, path string, query url.Values) ([]T, error) {
	list := []T{}
	for after := ""; ; {
		var page struct {
			Items      []T     `json:"items"`
			NextPageID *string `json:"next_page_id"`
		}
		query.Set("page_id", after)
		if err := p.waiting(cmd, c, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		list = append(list, page.Items...)
		if page.NextPageID == nil {
			return list, nil
		}
		after = *page.NextPageID
	}
}
