package git

import (
	"fmt"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

// The kinds of suggested tasks.
const (
	taskMergeConflicts     = "MERGE_CONFLICTS"
	taskFailingChecks      = "FAILING_CHECKS"
	taskUnresolvedComments = "UNRESOLVED_COMMENTS"
	taskOpenIssue          = "OPEN_ISSUE"
	taskOpenPR             = "OPEN_PR"
	taskCreateMicroagent   = "CREATE_MICROAGENT"
)

func taskTypes() []string {
	return []string{
		taskMergeConflicts,
		taskFailingChecks,
		taskUnresolvedComments,
		taskOpenIssue,
		taskOpenPR,
		taskCreateMicroagent,
	}
}

// ReadSuggestedTask reads V1's suggested_task. All its members are required.
func ReadSuggestedTask(o decode.Object) *fsm.SuggestedTask {
	t, ok := o.Object("suggested_task")
	if !ok {
		return nil
	}
	for _, f := range []struct {
		name    string
		allowed []string
	}{{"git_provider", Providers()}, {"task_type", taskTypes()}} {
		fault := decode.NotOneOf(f.allowed)
		if t.Require(f.name) {
			t.NotNull(f.name, fault.Kind())
		}
	}
	return ReadTask(t)
}

// ReadTask reads a suggested_task. Provider and type are optional, as in V0.
func ReadTask(t decode.Object) *fsm.SuggestedTask {
	return &fsm.SuggestedTask{
		GitProvider: (*fsm.ProviderType)(t.Enum("git_provider", Providers())),
		TaskType:    decode.OrZero(t.Enum("task_type", taskTypes())),
		Repo:        t.MustRepository("repo", fsm.MaxPath),
		IssueNumber: t.MustInteger("issue_number"),
		Title:       t.MustText("title", fsm.MaxLine),
	}
}

// ApplyTask sets what a suggested task implies for a start: first message, trigger and, if
// unset, repository and provider.
func ApplyTask(q *fsm.StartRequest) {
	t := q.SuggestedTask
	trigger := fsm.TriggerSuggestedTask
	q.Trigger = &trigger
	if q.SelectedRepository == nil && t.Repo != "" {
		q.SelectedRepository = &t.Repo
	}
	if q.GitProvider == nil {
		q.GitProvider = t.GitProvider
	}
	q.InitialMessage = textMessage(taskPrompt(t))
}

// textMessage returns a user's message with one text block.
func textMessage(text string) *fsm.Message {
	return &fsm.Message{Role: "user", Content: []fsm.ContentBlock{{Type: fsm.BlockText, Text: text}}}
}

// taskPrompt returns the prompt for a suggested task.
func taskPrompt(t *fsm.SuggestedTask) string {
	request, where := "pull request", "GitHub"
	switch decode.OrZero(t.GitProvider) {
	case fsm.ProviderGitLab:
		request, where = "merge request", "GitLab"
	case fsm.ProviderBitbucket, fsm.ProviderBitbucketDataCenter:
		where = "Bitbucket"
	case fsm.ProviderForgejo:
		where = "Forgejo"
	case fsm.ProviderAzureDevOps:
		where = "Azure DevOps"
	case "":
		where = "the git provider"
	}
	item := fmt.Sprintf("%s #%d (%q) of the repository %s", request, t.IssueNumber, t.Title, t.Repo)
	look := fmt.Sprintf("Use the API of %s with the token in your environment to look at it. ", where)
	switch t.TaskType {
	case taskMergeConflicts:
		return fmt.Sprintf("Resolve the merge conflicts of %s. %sCheck out its branch, merge the target branch into it, "+
			"resolve each conflict in the sense of both sides, run the tests, and push.", item, look)
	case taskFailingChecks:
		return fmt.Sprintf("Fix the failing checks of %s. %sCheck out its branch, find out why each check fails, "+
			"fix the cause, run the checks here, and push.", item, look)
	case taskUnresolvedComments:
		return fmt.Sprintf("Answer the unresolved review comments of %s. %sCheck out its branch, make the changes "+
			"that are asked for, say where you disagree, run the tests, and push.", item, look)
	case taskOpenPR:
		return fmt.Sprintf(
			"Work on the open %s. %sCheck out its branch, see what is left to do, do it, run the tests, and push.",
			item,
			look,
		)
	case taskCreateMicroagent:
		return fmt.Sprintf("Write a microagent for the repository %s: %s. Put it below .openhands/microagents, "+
			"on a new branch, and open a %s.", t.Repo, t.Title, request)
	}
	return fmt.Sprintf("Fix issue #%d (%q) of the repository %s. %sReproduce it, fix it on a new branch with a test, "+
		"push the branch, and open a %s that mentions the issue.", t.IssueNumber, t.Title, t.Repo, look, request)
}
