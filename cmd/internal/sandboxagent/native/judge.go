package native

import (
	"context"
	"encoding/json"
	"strings"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

const (
	judgePrompt = "You check whether an AI software agent has reached a goal.\n\nThe goal:\n"
	judgeRules  = "\n\nFind the requirements that the goal implies. For each one, look for proof in what happened: " +
		"contents of files, output of commands, results of tests. What is claimed and not proven, or uncertain, is " +
		"not met.\n\nWhat happened:\n\n"
	judgeForm = "\n\nAnswer with one JSON object and nothing else: {\"score\": the probability from 0 to 1 that all " +
		"of the goal is reached, \"complete\": true or false, \"missing\": what is left to do, in short, or \"\"}"
	// maxJudged bounds what a judge reads of a conversation, in characters. Its end is kept.
	maxJudged = 200_000
)

var _ engine.Judge = (*Engine)(nil)

// Judge implements engine.Judge. An answer that can't be read is no, so that no goal ends by it.
func (e *Engine) Judge(ctx context.Context, objective string) (engine.Verdict, error) {
	events, err := e.conv.Events()
	if err != nil {
		return engine.Verdict{}, err
	}
	text := transcript(messages(e.shown(events), false))
	if r := []rune(text); len(r) > maxJudged {
		text = "[the beginning is left out]\n\n" + string(r[len(r)-maxJudged:])
	}
	c := e.model()
	a, err := c.ask(ctx, prompt{messages: []openai.ChatCompletionMessage{
		userText(judgePrompt + objective + judgeRules + text + judgeForm),
	}})
	if err != nil {
		return engine.Verdict{}, asFailure(err)
	}
	if err := e.spent(c, usageAgent, a); err != nil {
		return engine.Verdict{}, err
	}
	return verdict(a.text), nil
}

// transcript is a history as a text, without the system prompt.
func transcript(list []openai.ChatCompletionMessage) string {
	var turns []string
	for _, m := range list {
		text := m.Content
		for _, part := range m.MultiContent {
			text += part.Text
		}
		for _, call := range m.ToolCalls {
			text += "\n[calls " + call.Function.Name + " " + call.Function.Arguments + "]"
		}
		if text = strings.TrimSpace(text); text != "" && m.Role != openai.ChatMessageRoleSystem {
			turns = append(turns, m.Role+": "+text)
		}
	}
	return strings.Join(turns, "\n\n")
}

// verdict reads a judge's answer, which may have words around the object.
func verdict(text string) engine.Verdict {
	var answer struct {
		Score    json.Number `json:"score"`
		Complete *bool       `json:"complete"`
		Missing  string      `json:"missing"`
	}
	from, to := strings.IndexByte(text, '{'), strings.LastIndexByte(text, '}')
	if from < 0 || to < from || json.Unmarshal([]byte(text[from:to+1]), &answer) != nil {
		return engine.Verdict{Missing: "The judge's answer could not be read."}
	}
	score, _ := answer.Score.Float64() // none is 0
	v := engine.Verdict{Score: min(max(score, 0), 1), Missing: answer.Missing}
	v.Complete = v.Score >= 1
	if answer.Complete != nil {
		v.Complete = *answer.Complete
	}
	return v
}
