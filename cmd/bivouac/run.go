package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/client"
)

// outageTime is how long a command goes on asking while no node answers.
const outageTime = 5 * time.Minute

// ownConversationsPath is a user's route to the own conversations.
const ownConversationsPath = "/api/v1/app-conversations"

// exitCodesOfRun is the part of the help of the commands that follow a run.
const exitCodesOfRun = `
Ctrl-C interrupts the run, a second one leaves it running. In a pipe a confirmation is
rejected, unless --confirm says otherwise; "--confirm accept" also lets a repository's
own setup files run. With --json each event is a line, and the end another. Exit codes:
0 finished, 1 failed, 2 wrong usage, 3 stuck, or at a limit of iterations or cost,
4 rejected, 130 interrupted or left.`

// runFlags are the flags of the commands that follow a run.
type runFlags struct {
	api     apiFlags
	confirm string
}

func (f *runFlags) register(cmd *cobra.Command) {
	f.api.register(cmd)
	f.api.registerJSON(cmd)
	cmd.Flags().StringVar(&f.confirm, "confirm", confirmAsk,
		`what is answered where the agent asks, or a repository's own files would run by `+
			`themselves: "ask" (you), "accept" or "reject"`)
}

func (f *runFlags) check() error {
	if err := oneOf(confirmAsk, confirmAccept, confirmReject)(f.confirm); err != nil {
		return usagef("--confirm: %w", err)
	}
	return nil
}

// startOptions are the flags of `bivouac run` that begin the conversation.
type startOptions struct{ repo, branch, model, agent, sandbox, title string }

func (p *program) runCommand() *cobra.Command {
	var f runFlags
	var o startOptions
	cmd := &cobra.Command{
		Use:   "run TASK",
		Short: "Give an agent a task in a sandbox, and show its work",
		Long: `Start a conversation with a task, show what the agent does until it ends, its answer,
and how much it changed. "-" reads the task from stdin. Where a repository's own files
would run by themselves, you are asked first.
` + exitCodesOfRun,
		Example: `  bivouac run "Write a greeting and test it"
  bivouac run --repo ada/engine --model anthropic/claude-sonnet-4 "Fix the failing test"
  bivouac run --confirm accept --json - < task.md`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			task := args[0]
			if task == "-" {
				b, err := io.ReadAll(p.stdin)
				if err != nil {
					return fmt.Errorf("reading the task: %w", err)
				}
				task = string(b)
			}
			if strings.TrimSpace(task) == "" {
				return usagef("the task is empty")
			}
			if o.branch != "" && o.repo == "" {
				return usagef("--branch needs --repo")
			}
			c, err := p.client(&f.api)
			if err != nil {
				return err
			}
			return p.newFollower(c, f).run(cmd.Context(), o.body(task))
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&o.repo, "repo", "", "repository to work on: OWNER/NAME or a URL")
	cmd.Flags().StringVar(&o.branch, "branch", "", "branch of the repository (default: its own)")
	cmd.Flags().StringVar(&o.model, "model", "", "model (default: the settings')")
	cmd.Flags().StringVar(&o.agent, "agent", "", "agent of the sandbox spec (default: the settings')")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "your sandbox to work in (default: a new one)")
	cmd.Flags().StringVar(&o.title, "title", "", "title of the conversation (default: made of the task)")
	return cmd
}

// body is the request that begins the conversation.
func (o startOptions) body(task string) map[string]any {
	body := map[string]any{"initial_message": textMessage(task)}
	for name, value := range map[string]string{
		"selected_repository": o.repo, "selected_branch": o.branch, "llm_model": o.model, "acp_server": o.agent,
		"sandbox_id": o.sandbox, "title": o.title,
	} {
		if value != "" {
			body[name] = value
		}
	}
	return body
}

// textMessage is a user's message.
func textMessage(text string) map[string]any {
	return map[string]any{"role": "user", "content": []any{map[string]string{"type": "text", "text": text}}}
}

// startTask is a start of a conversation on its way.
type startTask struct {
	ID           string              `json:"id"`
	Status       fsm.StartTaskStatus `json:"status"`
	Detail       *string             `json:"detail"`
	Conversation *string             `json:"app_conversation_id"`
	Sandbox      *string             `json:"sandbox_id"`
	Setup        *startSetup         `json:"setup"`
}

// startSetup is what a start asks about (API.md, "Start tasks: setup").
type startSetup struct {
	Repository string          `json:"repository"`
	Hash       string          `json:"hash"`
	Files      []fsm.SetupFile `json:"files"`
	Answer     *string         `json:"answer"`
	Skipped    bool            `json:"skipped"`
}

// run begins a conversation and follows it to the end of its run.
func (f *runFollower) run(ctx context.Context, body map[string]any) (err error) {
	defer f.begin(ctx)(&err)
	var task startTask
	once := rand.Text()
	if err := f.call(http.MethodPost, ownConversationsPath, body, &task, "Idempotency-Key", once); err != nil {
		return err
	}
	if err := f.awaitStart(&task); err != nil {
		return err
	}
	f.conversation, f.sandbox = *task.Conversation, *task.Sandbox
	f.say("conversation " + f.conversation)
	f.waits = true
	return f.follow(mark{})
}

// awaitStart waits until a start is READY.
func (f *runFollower) awaitStart(task *startTask) error {
	told, pause := fsm.StartTaskStatus(""), time.NewTicker(300*time.Millisecond)
	defer pause.Stop()
	asked := ""
	for {
		if task.Status != told {
			told = task.Status
			f.note("start: " + strings.ToLower(strings.ReplaceAll(string(told), "_", " ")))
		}
		switch {
		case task.Status == fsm.StartTaskReady && task.Conversation != nil && task.Sandbox != nil:
			if task.Detail != nil {
				f.say(*task.Detail)
			}
			return nil
		case task.Status == fsm.StartTaskError:
			return fmt.Errorf("the conversation could not be started: %s", printable(deref(task.Detail)))
		case task.Setup != nil && task.Setup.Answer == nil && !task.Setup.Skipped && asked != task.Setup.Hash:
			asked = task.Setup.Hash
			if err := f.askSetup(task); err != nil {
				return err
			}
		}
		if err := f.wait(pause.C); err != nil {
			return err
		}
		var list []*startTask
		path := ownConversationsPath + "/start-tasks?" + url.Values{"ids": {task.ID}}.Encode()
		if err := f.call(http.MethodGet, path, nil, &list); err != nil {
			return err
		}
		if len(list) != 1 || list[0] == nil {
			return errors.New("the start is gone: its conversation was deleted")
		}
		*task = *list[0]
	}
}

// askSetup asks whether what a repository runs by itself may run.
func (f *runFollower) askSetup(task *startTask) error {
	var names []string
	for _, file := range task.Setup.Files {
		names = append(names, "  "+file.Path)
	}
	f.say("Files of " + task.Setup.Repository + " would run by themselves:\n" + strings.Join(names, "\n"))
	path := "/api/v1/start-tasks/" + url.PathEscape(task.ID) + "/setup"
	hash := task.Setup.Hash
	return f.ask("Let them run? [y/N] ", func(accept bool, _ string) error {
		return f.call(http.MethodPost, path, map[string]any{"hash": hash, "accept": accept}, nil)
	})
}

// wait waits for a tick, and meanwhile for the user.
func (f *runFollower) wait(tick <-chan time.Time) error {
	for {
		select {
		case <-tick:
			return nil
		case <-f.stopping:
			f.stopping = nil
			f.interrupted = true
			f.say("the conversation is interrupted once it has begun; Ctrl-C again leaves it alone")
		case <-f.left:
			return f.ctx.Err()
		case line := <-f.lines:
			if err := f.answer(line); err != nil {
				return err
			}
		}
	}
}

// call calls the API until a node answers, for outageTime at most.
func (f *runFollower) call(method, path string, in, out any, header ...string) error {
	return f.repeat(func() error { return f.client.Call(f.ctx, method, path, in, out, header...) })
}

// repeat repeats a call while no node answers.
func (f *runFollower) repeat(call func() error) error {
	try := func() (struct{}, error) {
		err := call()
		if err != nil && !isOutage(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}
	_, err := backoff.Retry(f.ctx, try, f.patience()...)
	f.reached = f.reached || err == nil
	return err
}

// isOutage reports whether asking again may help: no node answered, or it could not do it now.
func isOutage(err error) bool {
	var refused *client.Error
	if errors.As(err, &refused) {
		return refused.Status >= http.StatusBadGateway && refused.Status <= http.StatusGatewayTimeout
	}
	return !errors.Is(err, context.Canceled) && !errors.Is(err, client.ErrUnexpected)
}
