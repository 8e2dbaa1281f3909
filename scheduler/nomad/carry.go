package nomad

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// The job beside a workspace. It has no secrets and no network. What a leader leaves that dies, the next
// one removes (carry_left.go), and without any it ends by itself.
const (
	carryPrefix   = "workspace-"
	carryTask     = "carry"
	carryLife     = "12h"
	trialLife     = "1m"
	carryCPU      = 100
	carryMemory   = 256
	carryTarget   = "/workspace"
	carryProgram  = "/sandbox-agent"
	carryBinary   = "sandbox-agent"
	carryPriority = userPriority
	// carryWait is how long the job may take to run, carryQuiet how long a stream may be silent.
	carryWait, carryQuiet = time.Minute, 2 * time.Minute
)

const (
	opRunCarrier = "run workspace job"
	opExec       = "exec in workspace job"
)

// ListWorkspaces implements scheduler.Carrier.
func (r *Runner) ListWorkspaces(ctx context.Context, job scheduler.Job) ([]scheduler.Workspace, error) {
	named, err := r.named(ctx, job.SandboxID, job.ClusterID)
	if err != nil {
		return nil, err
	}
	cur, err := r.info(ctx, jobID(job.SandboxID))
	if err != nil {
		return nil, err
	}
	var list []scheduler.Workspace
	for _, v := range named {
		if job.Owns(v.birth) {
			list = append(list, scheduler.Workspace{
				SandboxID: job.SandboxID, ClusterID: job.ClusterID, Birth: v.birth, ID: v.workspace.ID, NodeID: v.workspace.NodeID,
			})
		}
	}
	used := job.Volume
	if used == "" && cur != nil && ours(cur, job.ClusterID, job.SandboxID) {
		used = cur.Meta[metaVolume]
	}
	for i := range list {
		list[i].Current = list[i].ID == used || used == "" && i == 0
	}
	return list, nil
}

// NewWorkspace implements scheduler.Carrier.
func (r *Runner) NewWorkspace(ctx context.Context, job scheduler.Job, avoid []string) (scheduler.Workspace, error) {
	if err := r.refreshCapacity(ctx, 0); err != nil {
		return scheduler.Workspace{}, err
	}
	client := r.roomiestBut(job, avoid)
	if client == "" {
		return scheduler.Workspace{}, &scheduler.Failure{
			Reason: fsm.ReasonNoCapacity, Detail: "no other Nomad client has room for the sandbox and its workspace",
		}
	}
	before, err := r.volumes(ctx, job)
	if err != nil {
		return scheduler.Workspace{}, err
	}
	if _, err := r.createVolume(ctx, job, client, true); err != nil {
		return scheduler.Workspace{}, err
	}
	after, err := r.volumes(ctx, job)
	if err != nil {
		return scheduler.Workspace{}, err
	}
	for _, v := range after {
		if v.NodeID == client && !slices.ContainsFunc(before, func(b workspace) bool { return b.ID == v.ID }) {
			return scheduler.Workspace{
				SandboxID: job.SandboxID,
				ClusterID: job.ClusterID,
				Birth:     job.Birth,
				ID:        v.ID,
				NodeID:    client,
			}, nil
		}
	}
	return scheduler.Workspace{}, fsm.Errorf(fsm.CodeScheduler, "Nomad made no volume for %s on client %s",
		jobID(job.SandboxID), client)
}

// roomiestBut returns the client with the most free capacity that could run the sandbox, "" for none.
func (r *Runner) roomiestBut(job scheduler.Job, avoid []string) string {
	r.capacity.mu.Lock()
	defer r.capacity.mu.Unlock()
	var best *clientCapacity
	for _, c := range r.capacity.list {
		if slices.Contains(avoid, c.id) || !r.suits(c, job.Template) || c.leftFor(job) < 0 {
			continue
		}
		if best == nil || c.left(needs(job.Template)) > best.left(needs(job.Template)) {
			best = c
		}
	}
	if best == nil {
		return ""
	}
	return best.id
}

// Export implements scheduler.Carrier.
func (r *Runner) Export(
	ctx context.Context,
	job scheduler.Job,
	w scheduler.Workspace,
	known io.Reader,
	out io.Writer,
) error {
	return r.carry(ctx, job, w, "export", known, out)
}

// Import implements scheduler.Carrier.
func (r *Runner) Import(ctx context.Context, job scheduler.Job, w scheduler.Workspace, in io.Reader) error {
	return r.carry(ctx, job, w, "import", in, io.Discard)
}

// carry runs sandbox-agent's subcommand beside the workspace, on its client. The content goes through
// Nomad's exec: the job needs no network, and no credentials.
func (r *Runner) carry(
	ctx context.Context,
	job scheduler.Job,
	w scheduler.Workspace,
	what string,
	in io.Reader,
	out io.Writer,
) error {
	v, err := r.knownVolume(ctx, w.ID)
	if err != nil {
		return err
	}
	if v.cluster != job.ClusterID || !job.Owns(v.birth) || v.workspace.HostPath == "" {
		return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: "the workspace volume " + w.ID + " is gone from " +
			"Nomad, or is not the sandbox's"}
	}
	ws, err := r.usable(ctx, job.Template, v.workspace)
	if err != nil {
		return err
	}
	spec, command, err := r.carrySpec(job, ws, what == "export")
	if err != nil {
		return err
	}
	defer r.endCarrier(ctx, *spec.ID)
	alloc, err := r.runCarrier(ctx, spec)
	if err != nil {
		return err
	}
	return r.exec(ctx, job.Template.Driver, alloc, append(command, "workspace", what, carryDir(job.Template, ws)), in, out)
}

// carryDir is the workspace as the job beside it sees it.
func carryDir(t fsm.Template, ws workspace) string {
	if t.Driver == fsm.DriverDocker {
		return carryTarget
	}
	return ws.HostPath
}

// carrySpec makes the job beside a workspace, and the program that exec runs in it.
func (r *Runner) carrySpec(job scheduler.Job, ws workspace, readonly bool) (*api.Job, []string, error) {
	t := job.Template
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	id := carryPrefix + job.SandboxID + "-" + hex.EncodeToString(random)
	task := &api.Task{
		Name: carryTask, Driver: string(t.Driver), Resources: &api.Resources{CPU: new(carryCPU), MemoryMB: new(carryMemory)},
		LogConfig: &api.LogConfig{
			MaxFiles:      new(1),
			MaxFileSizeMB: new(1),
		}, RestartPolicy: &api.RestartPolicy{Attempts: new(0), Mode: new("fail")},
	}
	g := &api.TaskGroup{
		Name: new(carryTask), Count: new(1), Tasks: []*api.Task{task},
		Constraints:      []*api.Constraint{{LTarget: "${node.unique.id}", Operand: "=", RTarget: ws.NodeID}},
		ReschedulePolicy: &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)},
		EphemeralDisk:    &api.EphemeralDisk{SizeMB: new(10), Sticky: new(false), Migrate: new(false)},
	}
	program, life := carryProgram, carryLife
	if ws.HostPath == "" {
		life = trialLife
	}
	switch t.Driver {
	case fsm.DriverDocker:
		image := r.cfg.CarryImage
		if name, _, _ := strings.Cut(path.Base(t.Image), ":"); image == "" && name == carryBinary {
			image = t.Image
		}
		if image == "" {
			return nil, nil, &scheduler.Failure{Reason: fsm.ReasonSpec, Detail: "the image of the sandbox has no " +
				"sandbox-agent that copies workspaces: " +
				"name one that has in workspaces { image } of the nodes' configuration"}
		}
		carryInContainer(task, g, ws, image, life, readonly)
	case fsm.DriverRawExec:
		if program = r.cfg.CarryCommand; program == "" && path.Base(t.Command) == carryBinary {
			program = t.Command
		}
		if program == "" {
			return nil, nil, &scheduler.Failure{Reason: fsm.ReasonSpec, Detail: "the command of the sandbox is no " +
				"sandbox-agent that copies workspaces: " +
				"name one in workspaces { command } of the nodes' configuration"}
		}
		task.Config = map[string]any{"command": program, "args": []string{"workspace", "wait", life}}
	case fsm.DriverMock, fsm.DriverProcess:
		return nil, nil, &scheduler.Failure{
			Reason: fsm.ReasonSpec,
			Detail: "sandboxes with the driver " + string(t.Driver) + " have no workspace to copy",
		}
	}
	return &api.Job{
		ID: new(id), Name: new(id), Type: new("batch"), Priority: new(carryPriority), Region: optional(r.cfg.Region),
		Namespace: optional(r.cfg.Namespace),
		NodePool:  optional(r.cfg.NodePool), Datacenters: datacenters(r.cfg), TaskGroups: []*api.TaskGroup{g},
		Meta: map[string]string{metaCluster: job.ClusterID, metaSandbox: job.SandboxID, metaBirth: job.Birth},
	}, []string{program}, nil
}

// carryInContainer makes the task a container of the image, without network and with the capabilities
// that files of all owners need. The workspace is mounted in it.
func carryInContainer(task *api.Task, g *api.TaskGroup, ws workspace, image, life string, readonly bool) {
	task.User = "0:0"
	task.Config = map[string]any{
		"image": image, "args": []string{"workspace", "wait", life}, "network_mode": "none", "readonly_rootfs": true,
		"cap_drop": []string{"all"}, "cap_add": []string{"chown", "dac_override", "fowner", "fsetid"},
		"security_opt": []string{"no-new-privileges"}, "pids_limit": maxPids,
	}
	switch {
	case ws.HostPath == "": // a trial
	case ws.Bind:
		task.Config["mount"] = []map[string]any{
			{"type": "bind", "source": ws.HostPath, "target": carryTarget, "readonly": readonly},
		}
	default:
		task.VolumeMounts = []*api.VolumeMount{
			{Volume: new(volumeName), Destination: new(carryTarget), ReadOnly: new(readonly)},
		}
		g.Volumes = map[string]*api.VolumeRequest{volumeName: {
			// Nomad places no job that asks for a writer's access read-only; the mount alone is.
			Name: volumeName, Type: "host", Source: ws.Name,
			AccessMode:     string(api.HostVolumeAccessModeSingleNodeWriter),
			AttachmentMode: string(api.HostVolumeAttachmentModeFilesystem),
		}}
	}
}

// runCarrier registers the job and waits until its task runs.
func (r *Runner) runCarrier(ctx context.Context, spec *api.Job) (*api.Allocation, error) {
	r.carried.begin(*spec.ID)
	err := r.call(ctx, opRunCarrier, func(ctx context.Context) error {
		_, _, err := r.client.Jobs().EnforceRegister(spec, 0, write(ctx))
		return err
	})
	if err != nil {
		return nil, err
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, carryWait)
	defer cancel()
	why := "no room for the job that copies the workspace on its Nomad client, or the client takes no jobs"
	for {
		allocs, err := r.allocations(ctx, *spec.ID)
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		for _, a := range allocs {
			switch a.ClientStatus {
			case api.AllocClientStatusRunning:
				return &api.Allocation{ID: a.ID, NodeID: a.NodeID, Namespace: a.Namespace}, nil
			case api.AllocClientStatusPending:
				why = "the job that copies the workspace has not started on its Nomad client"
			default:
				return nil, fsm.Errorf(fsm.CodeScheduler, "the job that copies the workspace %s: %s", a.ClientStatus, lastEvent(a))
			}
		}
		if !pause(ctx, 100*time.Millisecond) {
			if errors.Is(caller.Err(), context.Canceled) { // the other end of a move failed, and has the cause
				return nil, caller.Err()
			}
			return nil, fsm.Errorf(fsm.CodeScheduler, "%s", why)
		}
	}
}

// lastEvent returns the last event of the job's task, in words.
func lastEvent(a *api.AllocationListStub) string {
	if st := a.TaskStates[carryTask]; st != nil && len(st.Events) > 0 {
		return st.Events[max(0, len(st.Events)-2)].DisplayMessage
	}
	return a.ClientDescription
}

// endCarrier removes the job. One that stays is removed by the leader's next look.
func (r *Runner) endCarrier(ctx context.Context, id string) {
	defer r.carried.end(id)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.CallTimeout)
	defer cancel()
	if err := r.deregister(ctx, id, true); err != nil && !errors.Is(err, errNotFound) {
		r.log.Warn("removing the job beside a workspace failed; the leader tries again", "job", id, "error", err)
	}
}

// exec runs the command in the allocation of a task with the driver. It ends when nothing flows for a
// while.
func (r *Runner) exec(
	ctx context.Context,
	driver fsm.Driver,
	alloc *api.Allocation,
	command []string,
	in io.Reader,
	out io.Writer,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := fsm.Errorf(fsm.CodeScheduler, "the workspace's Nomad client has sent and taken nothing for %s", carryQuiet)
	watch := time.AfterFunc(carryQuiet, func() { cancel(quiet) })
	defer watch.Stop()
	// The library's exec takes a plain transport only.
	inner, token := r.transport.current()
	client, err := api.NewClient(&api.Config{
		Address: r.cfg.Address, Region: r.cfg.Region, Namespace: r.cfg.Namespace, SecretID: token, HttpClient: &http.Client{
			Transport: inner,
		},
	})
	if err != nil {
		return err
	}
	var said bytes.Buffer
	code, err := client.Allocations().Exec(ctx, alloc, carryTask, false, command,
		flowing{in, nil, watch}, flowing{nil, out, watch}, &bounded{&said, 4096}, nil, query(ctx))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case says(err, "403"), says(err, textDenied):
		capability := "alloc-exec"
		if driver == fsm.DriverRawExec {
			capability = "alloc-exec or alloc-node-exec"
		}
		return &scheduler.Denied{
			Path:       "the namespace " + r.cfg.namespace(),
			Capability: capability,
			Detail:     "Nomad: " + opExec + ": " + err.Error(),
		}
	case err != nil:
		return fsm.Errorf(fsm.CodeScheduler, "Nomad: %s: %v", opExec, err)
	case code != 0:
		return fmt.Errorf("beside the workspace: %s (exit code %d)", strings.TrimSpace(said.String()), code)
	}
	return nil
}

// flowing passes a stream on and notes that it flows.
type flowing struct {
	in    io.Reader
	out   io.Writer
	watch *time.Timer
}

// Read implements io.Reader.
func (f flowing) Read(p []byte) (int, error) {
	n, err := f.in.Read(p)
	f.watch.Reset(carryQuiet)
	return n, err
}

// Write implements io.Writer.
func (f flowing) Write(p []byte) (int, error) {
	n, err := f.out.Write(p)
	f.watch.Reset(carryQuiet)
	return n, err
}

// bounded keeps the first bytes that are written.
type bounded struct {
	to   *bytes.Buffer
	left int
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	some := p[:min(len(p), b.left)]
	b.left -= len(some)
	b.to.Write(some)
	return len(p), nil
}
