package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

// Bounds of `bivouac operator debug`.
const (
	metricsInterval = 10 * time.Second
	// debugLogBytes bounds the log of one node in the archive.
	debugLogBytes = 64 << 20
	maxCPUSeconds = 20
)

func (p *program) debugCommand() *cobra.Command {
	var api apiFlags
	var duration time.Duration
	var output string
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Collect what is needed to find a fault, of every node, in one archive",
		Long: `Write one archive (tar.gz, readable by its owner alone): the status and the members
of the cluster, its configuration, and of every node its metrics during the time, its log meanwhile at
debug, goroutines, a heap and a CPU profile, and its configuration without secrets.
What could not be had is in errors.txt. It holds names of users, sandboxes and
addresses: look at it before you pass it on.`,
		Example: `  bivouac operator debug
  bivouac operator debug --duration 2m --output /tmp/bivouac-debug.tar.gz`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if duration < time.Second || duration > time.Hour {
				return usagef("--duration must be between 1s and 1h, got %s", duration)
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if output == "" {
				output = "bivouac-debug-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			return p.collectDebug(cmd.Context(), c, duration, output)
		},
	}
	api.register(cmd)
	cmd.Flags().DurationVar(&duration, "duration", 30*time.Second, "how long metrics and logs are collected")
	cmd.Flags().StringVar(&output, "output", "", "the archive (default bivouac-debug-TIME.tar.gz)")
	return cmd
}

// debugArchive gathers the archive's files in memory.
type debugArchive struct {
	client *client.Client
	mu     sync.Mutex
	files  []debugFile
	errors bytes.Buffer
}

type debugFile struct {
	name string
	body []byte
}

func (p *program) collectDebug(
	ctx context.Context,
	c *client.Client,
	duration time.Duration,
	output string,
) (err error) {
	f, err := os.OpenFile(output, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("making the archive: %s", oneLine(err))
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(output))
		}
	}()
	a := &debugArchive{client: c}
	var page wire.Page[cluster.Member]
	if err := c.Call(ctx, http.MethodGet, operatorPath+"members", nil, &page); err != nil {
		return err
	}
	fmt.Fprintf(p.stderr, "collecting from %d nodes for %s ...\n", len(page.Items), duration)
	for _, name := range []string{"status", "members", "hold", "config"} {
		a.fetch(ctx, name+".json", operatorPath+name)
	}
	var nodes sync.WaitGroup
	for _, m := range page.Items {
		nodes.Go(func() {
			a.collectNode(ctx, m.Name, duration)
			fmt.Fprintf(p.stderr, "%s: done\n", m.Name)
		})
	}
	nodes.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := a.write(f); err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	_, err = fmt.Fprintln(p.stdout, output)
	return err
}

// collectNode collects what one node has, during duration.
func (a *debugArchive) collectNode(ctx context.Context, node string, duration time.Duration) {
	dir, query := "nodes/"+node+"/", url.Values{"node": {node}}
	var parts sync.WaitGroup
	parts.Go(func() { a.followNode(ctx, node, duration) })
	parts.Go(func() {
		seconds := fmt.Sprint(max(1, min(maxCPUSeconds, int(duration.Seconds())-1)))
		a.fetch(ctx, dir+"profile.pprof",
			operatorPath+"pprof/profile?"+url.Values{"node": {node}, "seconds": {seconds}}.Encode())
	})
	parts.Go(func() {
		end, tick := time.After(duration), time.NewTicker(metricsInterval)
		defer tick.Stop()
		for n := 0; ; n++ {
			a.fetch(ctx, fmt.Sprintf("%smetrics-%02d.txt", dir, n), operatorPath+"debug/metrics?"+query.Encode())
			select {
			case <-end:
				a.fetch(ctx, dir+"metrics-end.txt", operatorPath+"debug/metrics?"+query.Encode())
				return
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	a.fetch(ctx, dir+"config.json", operatorPath+"debug/config?"+query.Encode())
	a.fetch(ctx, dir+"goroutines.txt", operatorPath+"pprof/goroutine?"+query.Encode())
	a.fetch(ctx, dir+"heap.pprof", operatorPath+"pprof/heap?"+query.Encode())
	parts.Wait()
}

// followNode follows a node's log for the duration.
func (a *debugArchive) followNode(ctx context.Context, node string, duration time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name := "nodes/" + node + "/log.jsonl"
	log, err := a.client.Follow(ctx, operatorPath+"log?"+logQuery(node, "debug", true))
	if err != nil {
		a.failed(name, err)
		return
	}
	defer log.Close()
	timer := time.AfterFunc(duration, cancel) // from the first answer on
	defer timer.Stop()
	text, err := io.ReadAll(io.LimitReader(log, debugLogBytes))
	if err != nil && ctx.Err() == nil {
		a.failed(name, err)
	}
	a.add(name, text)
}

// fetch adds one answer of the API.
func (a *debugArchive) fetch(ctx context.Context, name, path string) {
	body, _, err := a.client.Download(ctx, path)
	if err != nil {
		a.failed(name, err)
		return
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		a.failed(name, err)
		return
	}
	a.add(name, text)
}

func (a *debugArchive) add(name string, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.files = append(a.files, debugFile{name, body})
}

func (a *debugArchive) failed(name string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fmt.Fprintf(&a.errors, "%s: %v\n", name, err)
}

// write writes the archive, with errors.txt if something failed.
func (a *debugArchive) write(w io.Writer) error {
	if a.errors.Len() > 0 {
		a.add("errors.txt", a.errors.Bytes())
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	now := time.Now()
	for _, f := range a.files {
		header := &tar.Header{Name: "bivouac-debug/" + f.name, Mode: 0o600, Size: int64(len(f.body)), ModTime: now}
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		if _, err := t.Write(f.body); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}
