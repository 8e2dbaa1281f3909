package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/agent/bash"
)

// maxCopy bounds a file that is copied into a sandbox, in bytes.
const maxCopy = 64 << 20

func (p *program) sandboxesExecCommand() *cobra.Command {
	var api apiFlags
	var dir string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "exec SANDBOX -- COMMAND [ARG ...]",
		Short: "Run a command in your sandbox",
		Long: `Run a command in your sandbox, print what it writes, and end with its exit code. One
argument is a line of its shell; several are a program and its arguments. A paused
sandbox is resumed. Ctrl-C leaves the command running, until --timeout. The command
gets no input. A sandbox keeps 1 MiB of its output; more is lost, which is a failure.`,
		Example: `  bivouac sandboxes exec 5pYq0XbLr2kTc8Vn -- go test ./...
  bivouac sandboxes exec 5pYq0XbLr2kTc8Vn 'grep -r TODO . | wc -l'`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: p.completeSandbox(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < time.Second {
				return usagef("--timeout must be at least 1s, is %s", timeout)
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			command := args[1:]
			if command[0] == "--" && len(command) > 1 {
				command = command[1:]
			}
			in := map[string]any{"command": shellLine(command), "timeout": int(timeout / time.Second)}
			if dir != "" {
				in["cwd"] = dir
			}
			return p.execute(cmd, c, args[0], in, api.asJSON)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().SetInterspersed(false) // what follows the sandbox is the command's
	cmd.Flags().StringVar(&dir, "dir", "", "directory, absolute (default: the sandbox's)")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Hour, "when the sandbox ends the command")
	return cmd
}

// shellLine is a command line of a shell.
func shellLine(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// execute starts a command and prints its output until it ends. Its exit code becomes the program's;
// 1 where the sandbox ended it.
func (p *program) execute(cmd *cobra.Command, c *client.Client, sandbox string, in map[string]any, asJSON bool) error {
	var started struct {
		ID string `json:"id"`
	}
	at := agentPath(sandbox, "/api/bash/start_bash_command?wake=true")
	if err := p.waiting(cmd, c, http.MethodPost, at, in, &started); err != nil {
		return sandboxError(err, sandbox)
	}
	var whole agent.Output
	stdout, stderr := io.Writer(&printer{p.stdout}), io.Writer(&printer{p.stderr})
	if asJSON {
		stdout, stderr = writeTo(&whole.Stdout), writeTo(&whole.Stderr)
	}
	code, lost, err := p.output(cmd.Context(), c, sandbox, started.ID, stdout, stderr)
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(p.stderr, "left; the command goes on in the sandbox")
		return exitStatus(exitInterrupted)
	case err != nil:
		return err
	}
	if asJSON {
		if err := printJSON(p.stdout, map[string]any{
			"exit_code": code, "stdout": whole.Stdout, "stderr": whole.Stderr, "dropped_bytes": lost,
		}); err != nil {
			return err
		}
	}
	if lost > 0 {
		fmt.Fprintf(p.stderr, "bivouac: %d bytes of the output are lost: a sandbox keeps 1 MiB of a command's; "+
			"write more to a file, and copy that\n", lost)
	}
	switch {
	case code == 0 && lost > 0:
		return exitStatus(exitFailed)
	case code == 0:
		return nil
	case code < 0:
		return errors.New("the sandbox ended the command: its time was over, or the agent server was started again")
	}
	return exitStatus(code)
}

// output prints what a command writes and returns its exit code, and how much of it the sandbox lost.
// While no node answers it asks again, for outageTime at most.
func (p *program) output(
	ctx context.Context, c *client.Client, sandbox, id string, stdout, stderr io.Writer,
) (code, lost int, err error) {
	reached, told := time.Now(), false
	code, err = bash.Read(ctx, id, func(ctx context.Context, path string, page *bash.Page) error {
		err := c.Call(ctx, http.MethodGet, agentPath(sandbox, path), nil, page)
		switch {
		case err == nil:
			reached, told = time.Now(), false
		case ctx.Err() != nil || !isOutage(err):
			return errors.Join(ctx.Err(), err)
		case time.Since(reached) > outageTime:
			return fmt.Errorf("no node answers; the command goes on in the sandbox: %w", err)
		case !told:
			told = true
			fmt.Fprintln(p.stderr, "no node can do it now; asking again")
		}
		return nil
	}, func(one bash.Output) {
		_, _ = io.WriteString(stdout, deref(one.Stdout)) // nobody reads a closed pipe
		_, _ = io.WriteString(stderr, deref(one.Stderr))
		lost += one.DroppedBytes
	})
	return code, lost, err
}

// printer writes a sandbox's output: printable only where it goes to a terminal.
type printer struct{ w io.Writer }

// Write implements io.Writer.
func (o *printer) Write(b []byte) (int, error) {
	if _, is := isTerminal(o.w); !is {
		return o.w.Write(b)
	}
	_, err := io.WriteString(o.w, printableText(string(b)))
	return len(b), err
}

// writeTo appends to a text.
func writeTo(text *string) io.Writer { return appender{text} }

type appender struct{ text *string }

// Write implements io.Writer.
func (a appender) Write(b []byte) (int, error) {
	*a.text += string(b)
	return len(b), nil
}

// sandboxError names the sandbox that a key does not open.
func sandboxError(err error, sandbox string) error {
	var refused *client.Error
	if errors.As(err, &refused) && refused.Status == http.StatusUnauthorized {
		return fmt.Errorf("the API key is not good, or you have no sandbox %q (bivouac sandboxes list)", sandbox)
	}
	return err
}

func (p *program) sandboxesCopyCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "cp FROM TO",
		Short: "Copy a file into your sandbox, or out of it",
		Long: `Copy a file into your sandbox, or out of it: SANDBOX:/PATH is a file in a sandbox, any
other text one of this machine, "-" stdin or stdout. A paused sandbox is resumed.`,
		Example: `  bivouac sandboxes cp data.csv 5pYq0XbLr2kTc8Vn:/tmp/data.csv
  bivouac sandboxes cp 5pYq0XbLr2kTc8Vn:/tmp/result.txt .`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, in := sandboxFile(args[0])
			to, out := sandboxFile(args[1])
			if in == out {
				return usagef("one of both is SANDBOX:/PATH, the other a file of this machine")
			}
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			if out {
				err = p.copyIn(cmd, c, args[0], to)
			} else {
				err = p.copyOut(cmd, c, from, args[1])
			}
			if err != nil {
				return err
			}
			if args[1] == "-" {
				return nil
			}
			return p.done(&api, map[string]string{"from": args[0], "to": args[1]}, "%s is copied to %s", args[0], args[1])
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}

// fileInSandbox is a file in a sandbox.
type fileInSandbox struct{ sandbox, path string }

// sandboxFile reads SANDBOX:/PATH.
func sandboxFile(text string) (fileInSandbox, bool) {
	sandbox, file, found := strings.Cut(text, ":")
	is := found && sandbox != "" && !strings.ContainsRune(sandbox, '/') && path.IsAbs(file)
	return fileInSandbox{sandbox, file}, is
}

// url is the file's at one of the agent server's routes.
func (f fileInSandbox) url(route string) string {
	return agentPath(f.sandbox, "/api/file/"+route+"?"+url.Values{"path": {f.path}, "wake": {"true"}}.Encode())
}

func (p *program) copyIn(cmd *cobra.Command, c *client.Client, from string, to fileInSandbox) error {
	content := p.stdin
	if from != "-" {
		file, err := os.Open(from)
		if err != nil {
			return usagef("%s", oneLine(err))
		}
		defer file.Close()
		content = file
	}
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", path.Base(to.path))
	if err != nil {
		return err
	}
	n, err := io.Copy(part, io.LimitReader(content, maxCopy+1))
	if err != nil {
		return fmt.Errorf("reading %s: %w", from, err)
	}
	if n > maxCopy {
		return fmt.Errorf("%s has more than %d MiB", from, maxCopy>>20)
	}
	if err := form.Close(); err != nil {
		return err
	}
	return withProgress(cmd.Context(), p.stderr, "copying", func(ctx context.Context) error {
		err := c.UploadForm(ctx, to.url("upload"), form.FormDataContentType(), body.Bytes())
		return sandboxError(err, to.sandbox)
	})
}

func (p *program) copyOut(cmd *cobra.Command, c *client.Client, from fileInSandbox, to string) error {
	body, _, err := c.Download(cmd.Context(), from.url("download"))
	if err != nil {
		return sandboxError(err, from.sandbox)
	}
	defer body.Close()
	if to == "-" {
		_, err = io.Copy(&printer{p.stdout}, body)
		return err
	}
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		to = filepath.Join(to, path.Base(from.path))
	}
	return replaceFile(to, body)
}

// replaceFile writes a file as a whole or not at all, with the mode that it had. What is no ordinary
// file, as a pipe, is written in place.
func replaceFile(to string, content io.Reader) error {
	if real, err := filepath.EvalSymlinks(to); err == nil {
		to = real
	}
	part, flags := to, os.O_WRONLY|os.O_TRUNC
	info, err := os.Stat(to)
	whole := err != nil || info.Mode().IsRegular()
	if whole {
		part = filepath.Join(filepath.Dir(to), "."+rand.Text()+".part")
		flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
		defer os.Remove(part)
	}
	file, err := os.OpenFile(part, flags, 0o666)
	if err != nil {
		return usagef("%s", oneLine(err))
	}
	if whole && info != nil {
		err = file.Chmod(info.Mode().Perm())
	}
	if err == nil {
		_, err = io.Copy(file, content)
	}
	if err = errors.Join(err, file.Close()); err == nil && whole {
		err = os.Rename(part, to)
	}
	if err != nil {
		return fmt.Errorf("copying to %s: %w", to, err)
	}
	return nil
}
