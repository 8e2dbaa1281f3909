package nomad

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
)

// The results of a Check.
const (
	CheckOK   = "ok"
	CheckWarn = "warn"
	CheckFail = "fail"
)

// Check is one line of Examine.
type Check struct {
	Result, Subject, Detail string
}

// examination collects the lines of Examine.
type examination struct {
	r     *Runner
	found []Check
}

func (e *examination) add(result, subject, format string, args ...any) {
	e.found = append(e.found, Check{result, subject, fmt.Sprintf(format, args...)})
}

// Examine checks what a node needs of Nomad, for `bivouac operator doctor`: that it answers, its
// version, the token with each permission, the clients with the drivers that specs need, and the
// volume plugin. It changes nothing: permissions are tested with calls that Nomad refuses for
// another reason. nil drivers are not known.
func (r *Runner) Examine(ctx context.Context, drivers []fsm.Driver) []Check {
	e := &examination{r: r}
	var leader string
	err := e.ask(ctx, func(ctx context.Context) error {
		_, err := r.client.Raw().Query("/v1/status/leader", &leader, query(ctx))
		return err
	})
	switch {
	case err != nil:
		e.add(CheckFail, "nomad", "%s does not answer: %s; look at nomad { address } and ca_file, and whether Nomad runs",
			r.cfg.Address, callCause(err))
		return e.found
	case leader == "":
		e.add(CheckFail, "nomad", "%s answers and has no leader: bring its servers back", r.cfg.Address)
		return e.found
	}
	e.add(CheckOK, "nomad", "%s answers, %s leads", r.cfg.Address, leader)
	if rules, tested := e.token(ctx); tested {
		e.permissions(ctx)
		e.written(rules, drivers)
	}
	e.servers(ctx)
	e.clients(ctx, drivers)
	return e.found
}

// ask bounds one call.
func (e *examination) ask(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, e.r.cfg.CallTimeout)
	defer cancel()
	return fn(ctx)
}

// refusal returns the status of Nomad's answer, 0 for none.
func refusal(err error) int {
	var resp api.UnexpectedResponseError
	if errors.As(err, &resp) && resp.HasStatusCode() {
		return resp.StatusCode()
	}
	return 0
}

// callCause returns the cause of a call without an answer: the method and URL say nothing more.
func callCause(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// tokenWarning is how long before its end the token is warned of.
const tokenWarning = 10 * 24 * time.Hour

// token checks the token itself. tested is true where its permissions are worth testing.
func (e *examination) token(ctx context.Context) (rules []policyRules, tested bool) {
	var token *api.ACLToken
	err := e.ask(ctx, func(ctx context.Context) (err error) {
		token, _, err = e.r.client.ACLTokens().Self(query(ctx))
		return err
	})
	switch {
	case err == nil && token.AccessorID == "acls-disabled", err != nil &&
		strings.Contains(err.Error(), "ACL support disabled"):
		e.add(CheckWarn, "nomad.token",
			"Nomad's ACLs are off: whoever reaches it may do everything; turn them on (deploy/nomad/bivouac.policy.hcl)")
		return nil, false
	case e.r.cfg.Token == "" && e.r.cfg.TokenFile == "": // the anonymous token may be known
		e.add(CheckFail, "nomad.token",
			"Nomad's ACLs are on and nomad { token_file } is not set: issue a token with deploy/nomad/bivouac.policy.hcl")
		return nil, false
	case refusal(err) == http.StatusForbidden, refusal(err) == http.StatusBadRequest, refusal(err) == http.StatusNotFound:
		e.add(CheckFail, "nomad.token",
			"Nomad does not know the token: issue another with deploy/nomad/bivouac.policy.hcl, "+
				"and write it to nomad { token_file }")
		return nil, false
	case err != nil:
		e.add(CheckFail, "nomad.token", "Nomad does not tell of the token: %s", err)
		return nil, false
	case token.Type == "management":
		e.add(CheckWarn, "nomad.token",
			"it is a management token, which may do everything: issue one with deploy/nomad/bivouac.policy.hcl")
		return nil, false
	}
	if end := token.ExpirationTime; end != nil && time.Until(*end) < tokenWarning {
		e.add(CheckWarn, "nomad.token", "it ends on %s: issue another, and write it to nomad { token_file }",
			end.UTC().Format(time.RFC3339))
	} else {
		e.add(CheckOK, "nomad.token", "%q with %s", token.Name,
			strings.Join(append([]string{"its policies"}, token.Policies...), " "))
	}
	return e.rules(ctx), true
}

// permissions calls what each permission is for. A call that is refused for another reason than the
// permission shows that it is there.
func (e *examination) permissions(ctx context.Context) {
	c, namespace := e.r.client, "the namespace "+e.r.cfg.namespace()
	none := uuid.NewString()
	probe := "sandbox-doctor-" + none
	variable := fmt.Sprintf("the variable %s in %s", e.r.cfg.Variable, namespace)
	for _, p := range []struct {
		capability, path string
		call             func(context.Context) error
	}{
		{"list-jobs", namespace, func(ctx context.Context) error {
			q := query(ctx)
			q.Prefix = probe
			_, _, err := c.Jobs().List(q)
			return err
		}},
		{"read-job", namespace, func(ctx context.Context) error {
			_, _, err := c.Jobs().Info(probe, query(ctx))
			return err
		}},
		{"submit-job", namespace, func(ctx context.Context) error {
			_, _, err := c.Jobs().Plan(e.plan(probe), false, write(ctx))
			return err
		}},
		{"host-volume-create", namespace, func(ctx context.Context) error { // it has no name
			_, _, err := c.HostVolumes().Create(&api.HostVolumeCreateRequest{Volume: &api.HostVolume{}}, write(ctx))
			return err
		}},
		{"host-volume-read", namespace, func(ctx context.Context) error {
			_, _, err := c.HostVolumes().Get(none, query(ctx))
			return err
		}},
		{"host-volume-delete", namespace, func(ctx context.Context) error {
			_, _, err := c.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: none}, write(ctx))
			return err
		}},
		{"read", variable, func(ctx context.Context) error {
			_, _, err := c.Variables().Peek(e.r.cfg.Variable, query(ctx))
			return err
		}},
		{"write", variable, func(ctx context.Context) error { // no variable has this index
			v := &api.Variable{Path: e.r.cfg.Variable, Items: api.VariableItems{"doctor": "none"}, ModifyIndex: math.MaxInt64}
			_, _, err := c.Variables().CheckedUpdate(v, write(ctx))
			return err
		}},
		{"read", "nodes", func(ctx context.Context) error {
			_, _, err := c.Nodes().List(query(ctx))
			return err
		}},
	} {
		subject := "nomad.permission"
		switch err := e.ask(ctx, p.call); {
		case refusal(err) == http.StatusForbidden:
			e.add(CheckFail, subject, "the token lacks %s on %s: apply deploy/nomad/bivouac.policy.hcl again", p.capability,
				p.path)
		case err != nil && refusal(err) == 0 && !errors.As(err, new(api.ErrCASConflict)) &&
			!errors.Is(err, api.ErrVariablePathNotFound):
			e.add(CheckWarn, subject, "%s on %s could not be tested: %s", p.capability, p.path, err)
		default:
			e.add(CheckOK, subject, "%s on %s", p.capability, p.path)
		}
	}
}

// plan is the smallest job that Nomad plans. Planning it takes submit-job and starts nothing.
func (e *examination) plan(id string) *api.Job {
	task := api.NewTask("doctor", string(fsm.DriverDocker)).SetConfig("image", "none")
	job := api.NewServiceJob(id, id, "", 50).AddTaskGroup(api.NewTaskGroup("doctor", 1).AddTask(task))
	job.Namespace = new(e.r.cfg.namespace())
	if e.r.cfg.NodePool != "" {
		job.NodePool = new(e.r.cfg.NodePool)
	}
	return job
}

// policyRules are the parts of a policy's rules that no harmless call tests.
type policyRules struct {
	Namespaces  []namedRule
	HostVolumes []namedRule
}

type namedRule struct {
	Name, Policy string
	Capabilities []string
}

// rules reads the token's own policies. Nomad before 1.11 does not parse them, and they are not
// tested.
func (e *examination) rules(ctx context.Context) (all []policyRules) {
	var stubs []*api.ACLPolicyListStub
	if e.ask(ctx, func(ctx context.Context) (err error) {
		stubs, _, err = e.r.client.ACLPolicies().List(query(ctx))
		return err
	}) != nil {
		return nil
	}
	for _, stub := range stubs {
		var policy struct{ RulesJSON *policyRules }
		err := e.ask(ctx, func(ctx context.Context) error {
			_, err := e.r.client.Raw().Query("/v1/acl/policy/"+stub.Name, &policy, query(ctx))
			return err
		})
		if err == nil && policy.RulesJSON != nil {
			all = append(all, *policy.RulesJSON)
		}
	}
	return all
}

// written judges the permissions that only the policies' text shows.
func (e *examination) written(all []policyRules, drivers []fsm.Driver) {
	if len(all) == 0 {
		e.add(CheckWarn, "nomad.permission",
			"read-logs, alloc-exec and mounting volumes could not be tested: Nomad does not show the token's policies")
		return
	}
	may := func(rules func(policyRules) []namedRule, name, capability string) bool {
		for _, one := range all {
			for _, rule := range rules(one) {
				matches, err := path.Match(rule.Name, name)
				if err == nil && matches && (rule.Policy == "write" || slices.Contains(rule.Capabilities, capability)) {
					return true
				}
			}
		}
		return false
	}
	namespaces := func(p policyRules) []namedRule { return p.Namespaces }
	volumes := func(p policyRules) []namedRule { return p.HostVolumes }
	for _, p := range []struct {
		capability, shown string
		has               bool
	}{
		{"read-logs", "the namespace " + e.r.cfg.namespace(), may(namespaces, e.r.cfg.namespace(), "read-logs")},
		{"alloc-exec", "the namespace " + e.r.cfg.namespace(), may(namespaces, e.r.cfg.namespace(), "alloc-exec")},
		{"write", `host_volume "sandbox-*"`, may(volumes, "sandbox-doctor", "mount-readwrite")},
	} {
		if p.has {
			e.add(CheckOK, "nomad.permission", "%s on %s, by the policy's text", p.capability, p.shown)
		} else {
			e.add(CheckFail, "nomad.permission",
				"the token's policies lack %s on %s: apply deploy/nomad/bivouac.policy.hcl again", p.capability, p.shown)
		}
	}
	if slices.Contains(drivers, fsm.DriverRawExec) && !may(namespaces, e.r.cfg.namespace(), "alloc-node-exec") {
		e.add(CheckWarn, "nomad.permission",
			"the token's policies lack alloc-node-exec on the namespace %s: "+
				"workspaces of raw_exec can't be copied or moved without it", e.r.cfg.namespace())
	}
}
