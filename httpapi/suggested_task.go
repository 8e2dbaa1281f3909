package httpapi

import (
	"fmt"

	"bivouac.dev/bivouac/fsm"
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
	return []string{taskMergeConflicts, taskFailingChecks, taskUnresolvedComments, taskOpenIssue, taskOpenPR, taskCreateMicroagent}
}

// readSuggestedTask reads V1's suggested_task, whose members are all required.
func readSuggestedTask(o object) *fsm.SuggestedTask {
	t, ok := o.object("suggested_task")
	if !ok {
		return nil
	}
	for _, f := range []struct {
		name    string
		allowed []string
	}{{"git_provider", providerNames()}, {"task_type", taskTypes()}} {
		fault := enumFault(f.allowed)
		if t.require(f.name) {
			t.notNull(f.name, kind{fault.typ, fault.msg})
		}
	}
	return readTaskMembers(t)
}

// readTaskMembers reads a suggested_task; provider and type may be absent, as V0
// allows.
func readTaskMembers(t object) *fsm.SuggestedTask {
	return &fsm.SuggestedTask{
		GitProvider: (*fsm.ProviderType)(t.enum("git_provider", providerNames())),
		TaskType:    deref(t.enum("task_type", taskTypes())),
		Repo:        t.mustText("repo", maxNameText),
		IssueNumber: t.mustInteger("issue_number"),
		Title:       t.mustText("title", maxSetting),
	}
}

// applySuggestedTask fills in what a suggested task says about a start: first
// message, trigger, and, where they are open, repository and provider.
func applySuggestedTask(q *fsm.StartRequest) {
	t := q.SuggestedTask
	trigger := triggerSuggestedTask
	q.Trigger = &trigger
	if q.SelectedRepository == nil && t.Repo != "" {
		q.SelectedRepository = &t.Repo
	}
	if q.GitProvider == nil {
		q.GitProvider = t.GitProvider
	}
	q.InitialMessage = textMessage(taskPrompt(t))
}

// textMessage is a user's message of one text.
func textMessage(text string) *fsm.Message {
	return &fsm.Message{Role: "user", Content: []fsm.ContentBlock{{Type: blockText, Text: text}}}
}

// taskPrompt words a suggested task for the agent.
func taskPrompt(t *fsm.SuggestedTask) string {
	request, where := "pull request", "GitHub"
	switch deref(t.GitProvider) {
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
		return fmt.Sprintf("Work on the open %s. %sCheck out its branch, see what is left to do, do it, run the tests, and push.", item, look)
	case taskCreateMicroagent:
		return fmt.Sprintf("Write a microagent for the repository %s: %s. Put it below .openhands/microagents, "+
			"on a new branch, and open a %s.", t.Repo, t.Title, request)
	}
	return fmt.Sprintf("Fix issue #%d (%q) of the repository %s. %sReproduce it, fix it on a new branch with a test, "+
		"push the branch, and open a %s that mentions the issue.", t.IssueNumber, t.Title, t.Repo, look, request)
}
