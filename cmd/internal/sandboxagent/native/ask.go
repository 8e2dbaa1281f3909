package native

import (
	"context"
	"errors"
	"strings"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// longestTitle is the length of a title, in characters.
const longestTitle = 50

// Ask implements engine.Asker: the model sees the conversation and the question, and calls no tool.
func (e *Engine) Ask(ctx context.Context, question string) (string, error) {
	box, err := e.open(ctx)
	if err != nil {
		return "", err
	}
	events, err := e.conv.Events()
	if err != nil {
		return "", err
	}
	c := e.model()
	shown := e.shown(events)
	list := append(messages(shown, true), userText(question))
	a, err := c.ask(ctx, prompt{
		messages: list, thoughts: thoughtsOf(shown), tools: definitions(box), noCalls: true,
	})
	if err != nil {
		return "", asFailure(err)
	}
	if strings.TrimSpace(a.text) == "" {
		return "", &engine.Failure{Code: codeNoResponse, Detail: "The model gave no answer. Try again."}
	}
	return a.text, nil
}

// Title implements engine.Titler.
func (e *Engine) Title(ctx context.Context, message string) (string, error) {
	if r := []rune(message); len(r) > 1000 {
		message = string(r[:1000])
	}
	a, err := e.model().ask(ctx, prompt{messages: []openai.ChatCompletionMessage{
		{
			Role: openai.ChatMessageRoleSystem,
			Content: "Write a title of at most 50 characters for a conversation that begins with the user's message. " +
				"Answer with the title only: one line, no quotes, in the message's language.",
		},
		userText(message),
	}})
	if err != nil {
		return "", asFailure(err)
	}
	title, _, _ := strings.Cut(strings.TrimSpace(a.text), "\n")
	title = strings.Trim(strings.TrimSpace(title), `"'`+"`")
	if title == "" {
		return "", &engine.Failure{Code: codeNoResponse, Detail: "The model gave no title."}
	}
	if r := []rune(title); len(r) > longestTitle {
		title = string(r[:longestTitle-1]) + "…"
	}
	return title, nil
}

// asFailure is the error of a call beside the steps, where nothing is condensed.
func asFailure(err error) error {
	var r *refusal
	if !errors.As(err, &r) {
		return err
	}
	switch r.kind {
	case refusedContent:
		return &engine.Failure{Code: codePolicy, Detail: "The model's content filter blocks the answer. " + r.detail}
	case refusedLength:
		return &engine.Failure{Code: codeContext, Detail: "The conversation is longer than the model's context. " + r.detail}
	}
	return &engine.Failure{Code: codeBadRequest, Detail: "The model's server refuses the history. " + r.detail}
}
