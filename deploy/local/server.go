package local

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Server is a program of others that serves HTTP at 127.0.0.1: Nomad, Vault or HAProxy.
type Server struct {
	// Address is the API's URL: http://127.0.0.1:<port>.
	Address string
	// Dir has its files; Log is its log file.
	Dir string
	Log string

	cmd  Command
	proc *Process
}

// serverOptions are what the three have in common.
type serverOptions struct {
	name, dir, binary string
	port              int // 0 is a free one
	detach            bool
	progress          io.Writer
}

// newServer chooses a server's program and its ports, the API's first, and starts nothing.
func newServer(ctx context.Context, o serverOptions, count int) (s Server, ports []int, err error) {
	if o.binary == "" {
		if o.binary, err = Tool(ctx, o.name, o.progress); err != nil {
			return s, nil, err
		}
	}
	if ports, err = freePorts(count); err != nil {
		return s, nil, err
	}
	if o.port != 0 {
		ports[0] = o.port
	}
	if s.Dir, err = filepath.Abs(o.dir); err != nil {
		return s, nil, err
	}
	s.Address, s.Log = "http://127.0.0.1:"+strconv.Itoa(ports[0]), filepath.Join(s.Dir, o.name+".log")
	s.cmd = Command{Name: o.name, Dir: s.Dir, Path: o.binary, Detach: o.detach}
	return s, ports, nil
}

// configure writes the configuration and names it in the arguments.
func (s *Server) configure(file string, text []byte, args ...string) error {
	config := filepath.Join(s.Dir, file)
	s.cmd.Args = args
	s.cmd.Args[len(args)-1] += config
	if err := writeFile(config, text, 0o600); err != nil {
		return fmt.Errorf("starting %s: %w", s.cmd.Name, err)
	}
	return nil
}

// start starts the program, with an empty data directory on the first start.
func (s *Server) start() (err error) {
	if err := os.MkdirAll(filepath.Join(s.Dir, "data"), 0o700); err != nil {
		return fmt.Errorf("starting %s: %w", s.cmd.Name, err)
	}
	s.proc, err = s.cmd.Start()
	return err
}

// call sends a request with a token in the header, none for "".
func (s *Server) call(ctx context.Context, header, token, method, path string, in, out any) error {
	c := call{method: method, url: s.Address + "/v1/" + path, in: in, out: out, header: map[string]string{}}
	if token != "" {
		c.header[header] = token
	}
	return c.do(ctx)
}

// stop stops the program gracefully, and kills it after the grace period.
func (s *Server) stop(grace time.Duration) error { return s.proc.Stop(grace) }

// Kill sends SIGKILL. Start starts it again.
func (s *Server) Kill() error { return s.proc.Kill() }

// Pid returns the running program's process id.
func (s *Server) Pid() int { return s.proc.pid }
