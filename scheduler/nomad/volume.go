package nomad

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// volumeMark is a constraint that names the volume's cluster or birth. The plugin's parameters
// can't: mkdir refuses unknown ones. A literal is always set, so it excludes no client.
func volumeMark(name, value string) *api.Constraint {
	return &api.Constraint{LTarget: name + "=" + value, Operand: "is_set"}
}

// workspace returns the sandbox's volume, ready to be mounted, and makes it when the sandbox
// never ran. A sandbox that ran and has no volume is a Failure: an empty directory in its place
// would look like lost work.
func (r *Runner) workspace(ctx context.Context, job scheduler.Job, had leftovers) (workspace, error) {
	if job.Volume != "" {
		return r.moved(ctx, job, had)
	}
	if len(had.volumes) > 0 {
		ws := current(had.volumes, had.job)
		move, err := r.mayMove(ctx, job, ws)
		if err != nil {
			return ws, err
		}
		if !move {
			if words := r.closed(ctx, job, ws.NodeID); words != "" && !job.HasVersion && !job.HasWorkspace {
				return ws, &scheduler.Failure{Reason: fsm.ReasonNoCapacity, Detail: words}
			}
			return r.usable(ctx, job.Template, ws)
		}
		r.log.Info("moving a sandbox that never ran to a client with capacity", "sandbox", job.SandboxID)
		if err := r.deleteVolume(ctx, ws, true); err != nil {
			return ws, err
		}
	} else if job.HasVersion || job.HasWorkspace {
		return workspace{}, &scheduler.Failure{
			Reason: fsm.ReasonWorkspace,
			Detail: "the workspace volume " + jobID(job.SandboxID) + " is gone from Nomad: " +
				"bring it back and resume, or delete the sandbox",
		}
	}
	client, err := r.chooseClient(ctx, job, nil)
	if err != nil {
		return workspace{}, err
	}
	if _, err := r.createVolume(ctx, job, client, false); err != nil {
		return workspace{}, err
	}
	// Another leader may have made one too: the oldest counts.
	volumes, err := r.volumes(ctx, job)
	if err != nil {
		return workspace{}, err
	}
	if len(volumes) == 0 {
		return workspace{}, fsm.Errorf(fsm.CodeScheduler, "Nomad does not show the volume it made for %s",
			jobID(job.SandboxID))
	}
	return r.usable(ctx, job.Template, current(volumes, nil))
}

// moved returns the volume of a sandbox whose workspace was moved. No other may take its place.
func (r *Runner) moved(ctx context.Context, job scheduler.Job, had leftovers) (workspace, error) {
	for _, ws := range had.volumes {
		if ws.ID == job.Volume {
			return r.usable(ctx, job.Template, ws)
		}
	}
	return workspace{}, &scheduler.Failure{
		Reason: fsm.ReasonWorkspace,
		Detail: "the workspace volume " + job.Volume + " is gone from Nomad: bring it back and resume, or delete the sandbox",
	}
}

// current returns the volume of the job, or else the oldest: two leaders may have made one each,
// on two clients, and both use the first.
func current(volumes []workspace, cur *api.Job) workspace {
	if cur != nil {
		for _, ws := range volumes {
			if ws.ID == cur.Meta[metaVolume] {
				return ws
			}
		}
	}
	return volumes[0]
}

// movable is how old a workspace may be that is deleted for one on another client. Nomad forgets
// allocations an hour after their end, so an older workspace without allocations may have been
// used.
const movable = 30 * time.Minute

// mayMove reports whether the sandbox should get its workspace on another client. It may as long
// as it was never placed: the workspace is still empty.
func (r *Runner) mayMove(ctx context.Context, job scheduler.Job, ws workspace) (bool, error) {
	young := time.Since(job.CreatedAt) <= movable || time.Since(ws.Made) <= movable
	if job.HasVersion || job.HasWorkspace || !young || !r.betterElsewhere(ctx, job, ws.NodeID) {
		return false, nil
	}
	allocs, err := r.allocations(ctx, jobID(job.SandboxID))
	return len(allocs) == 0, err
}

// usable makes sure that a job can mount the workspace. Where docker mounts host directories the
// workspace is mounted as one. A volume mount has to wait until the client has announced the new
// volume, which Nomad's clients do five to ten seconds later (client.watchNodeUpdates, Nomad
// 1.11).
func (r *Runner) usable(ctx context.Context, t fsm.Template, ws workspace) (workspace, error) {
	if t.Driver != fsm.DriverDocker {
		return ws, nil
	}
	if !r.cfg.MountVolumes {
		facts, err := r.clientFacts(ctx, ws.NodeID)
		if ws.Bind = facts.binds; ws.Bind || err != nil {
			return ws, err
		}
	}
	return r.ready(ctx, ws)
}

// volumes lists the volumes that are the sandbox's, oldest first.
func (r *Runner) volumes(ctx context.Context, job scheduler.Job) ([]workspace, error) {
	named, err := r.named(ctx, job.SandboxID, job.ClusterID)
	var list []workspace
	for _, v := range named {
		if job.Owns(v.birth) {
			list = append(list, v.workspace)
		}
	}
	return list, err
}

// named lists this cluster's volumes with the sandbox's name, of any birth, oldest first.
func (r *Runner) named(ctx context.Context, sandboxID, clusterID string) ([]madeVolume, error) {
	stubs, err := r.volumeStubs(ctx, jobID(sandboxID))
	if err != nil {
		return nil, err
	}
	var list []madeVolume
	for _, s := range stubs {
		if jobOf(s.Name) != jobID(sandboxID) {
			continue
		}
		v, err := r.knownVolume(ctx, s.ID)
		if err != nil {
			return nil, err
		}
		if v.cluster == clusterID {
			list = append(list, v)
		}
	}
	return list, nil
}

// madeVolume is what does not change of a volume: its owner and place.
type madeVolume struct {
	// cluster is the cluster whose mark it carries, "" for none or when the volume is gone; birth
	// is the birth it carries.
	cluster, birth string
	workspace      workspace
}

// knownVolume returns the volume's owner and place, from the cache if possible.
func (r *Runner) knownVolume(ctx context.Context, id string) (madeVolume, error) {
	if known, ok := r.made.Get(id); ok {
		return known, nil
	}
	v, err := r.volume(ctx, id)
	if err != nil || v == nil {
		return madeVolume{}, err
	}
	return r.remember(v, time.Time{}), nil
}

// remember returns a volume's facts, and caches them once its client has made it. at is when this
// runner had it made.
func (r *Runner) remember(v *api.HostVolume, at time.Time) madeVolume {
	m := madeVolume{workspace: workspace{
		ID: v.ID, Name: v.Name, NodeID: v.NodeID, HostPath: v.HostPath, Made: at,
	}}
	for _, c := range v.Constraints {
		if c.Operand != "is_set" {
			continue
		}
		if of, ok := strings.CutPrefix(c.LTarget, metaCluster+"="); ok {
			m.cluster = of
		}
		if birth, ok := strings.CutPrefix(c.LTarget, metaBirth+"="); ok {
			m.birth = birth
		}
	}
	if v.HostPath != "" {
		r.made.Add(v.ID, m)
	}
	if v.NodeID != "" {
		r.homes.Add(v.ID, v.NodeID)
	}
	return m
}

// volumeStubs lists volumes whose name begins with prefix, oldest first.
func (r *Runner) volumeStubs(ctx context.Context, prefix string) ([]*api.HostVolumeStub, error) {
	var stubs []*api.HostVolumeStub
	err := r.call(ctx, "list volumes", func(ctx context.Context) error {
		q := query(ctx)
		q.Prefix = prefix
		var err error
		stubs, _, err = r.client.HostVolumes().List(nil, q)
		return err
	})
	stubs = slices.DeleteFunc(stubs, func(s *api.HostVolumeStub) bool { return !strings.HasPrefix(s.Name, prefix) })
	slices.SortFunc(stubs, func(a, b *api.HostVolumeStub) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	return stubs, err
}

// volume reads one volume, nil when it is gone.
func (r *Runner) volume(ctx context.Context, id string) (*api.HostVolume, error) {
	var v *api.HostVolume
	err := r.call(ctx, "read volume", func(ctx context.Context) error {
		var err error
		v, _, err = r.client.HostVolumes().Get(id, query(ctx))
		if says(err, "404") {
			v, err = nil, nil
		}
		return err
	})
	return v, err
}

// createVolume makes the sandbox's volume, on the client if one is named, and returns it as
// Nomad's response has it. Without an id there is a volume already. beside makes another one then.
func (r *Runner) createVolume(ctx context.Context, job scheduler.Job, client string, beside bool) (workspace, error) {
	t := job.Template
	v := &api.HostVolume{
		Namespace: r.cfg.Namespace, PluginID: r.cfg.VolumePlugin,
		NodePool: r.cfg.NodePool, NodeID: client,
		RequestedCapabilities: []*api.HostVolumeCapability{{
			AttachmentMode: api.HostVolumeAttachmentModeFilesystem,
			AccessMode:     api.HostVolumeAccessModeSingleNodeWriter,
		}},
		Constraints: []*api.Constraint{
			volumeMark(metaCluster, job.ClusterID),
			{LTarget: "${attr.driver." + string(t.Driver) + "}", Operand: "is_set"},
		},
		Parameters: ownership(t),
	}
	if job.Birth != "" {
		v.Constraints = append(v.Constraints, volumeMark(metaBirth, job.Birth))
	}
	if len(r.cfg.Datacenters) > 0 {
		v.Constraints = append(v.Constraints, &api.Constraint{
			LTarget: "${node.datacenter}", Operand: "set_contains_any", RTarget: strings.Join(r.cfg.Datacenters, ","),
		})
	}
	made, err := r.nameVolume(ctx, job, v, beside)
	if says(err, "no node meets constraints") {
		return workspace{}, r.refusedVolume(ctx, job, err)
	}
	if client != "" && fsm.CodeOf(err) == fsm.CodeScheduler {
		r.avoid(client)
	}
	if err != nil || made == nil || made.ID == "" || made.NodeID == "" || made.HostPath == "" {
		return workspace{}, err
	}
	return r.remember(made, time.Now()).workspace, nil
}

// volumeNames bounds the names of a sandbox's volumes on one client.
const volumeNames = 9

// volumeNamed returns the name of a sandbox's volume: that of its job, and with a number from two
// on where the client takes no second volume of a name. Sandbox ids have no dots.
func volumeNamed(sandboxID string, n int) string {
	if n < 2 {
		return jobID(sandboxID)
	}
	return jobID(sandboxID) + "." + strconv.Itoa(n)
}

// jobOf returns the job of the sandbox whose volume has the name.
func jobOf(volume string) string {
	id, _, _ := strings.Cut(volume, ".")
	return id
}

// nameVolume makes the volume under the first name that its client takes. A client keeps the name
// of a volume that Nomad's servers have forgotten (hashicorp/nomad#27313): one made as they
// crashed, or deleted by force while the client was down. Nomad has no call that deletes such a
// volume.
func (r *Runner) nameVolume(
	ctx context.Context, job scheduler.Job, v *api.HostVolume, beside bool,
) (made *api.HostVolume, err error) {
	for n := range volumeNames {
		v.Name = volumeNamed(job.SandboxID, n+1)
		err = r.call(ctx, "create volume", func(ctx context.Context) error {
			answer, _, err := r.client.HostVolumes().Create(&api.HostVolumeCreateRequest{Volume: v}, write(ctx))
			if err == nil {
				made = answer.Volume
			}
			return err
		})
		if !says(err, textNameTaken) {
			break
		}
		if beside {
			continue
		}
		if has, unread := r.volumes(ctx, job); unread != nil || len(has) > 0 {
			return nil, unread // it is the sandbox's own
		}
	}
	numbered := made != nil && made.Name != jobID(job.SandboxID)
	if numbered && !beside {
		if has, unread := r.volumes(ctx, job); unread != nil || len(has) > 1 {
			return nil, unread // another leader's, which Nomad did not show before; the oldest counts
		}
	}
	if numbered {
		r.log.Warn("a Nomad client has another volume of this sandbox's name, so the workspace has a number; "+
			"remove the other's directory if no volume has it", "sandbox", job.SandboxID,
			"address", made.NodeID, "path", r.pathOf(ctx, made.NodeID, jobID(job.SandboxID)))
	}
	return made, err
}

// pathOf returns the directory of the volume that a client has under the name, "" when it does not
// say.
func (r *Runner) pathOf(ctx context.Context, client, name string) (path string) {
	_ = r.call(ctx, opReadClient, func(ctx context.Context) error { // only a log has it
		node, _, err := r.client.Nodes().Info(client, query(ctx))
		if err == nil && node.HostVolumes[name] != nil {
			path = node.HostVolumes[name].Path
		}
		return err
	})
	return path
}

// refusedVolume returns why Nomad finds no client for a new volume; nil when the sandbox's volume
// exists after all. A client has at most one volume of a name, and refuses a second one with the
// text for an unsuitable client: another leader may have made it, or an earlier sandbox's volume
// is kept.
func (r *Runner) refusedVolume(ctx context.Context, job scheduler.Job, refusal error) error {
	named, err := r.named(ctx, job.SandboxID, job.ClusterID)
	if err == nil && slices.ContainsFunc(named, func(v madeVolume) bool { return job.Owns(v.birth) }) {
		return nil
	}
	if len(named) > 0 {
		return &scheduler.Failure{Reason: fsm.ReasonWorkspace, Detail: fmt.Sprintf(
			"the volume %s (%s) of a former sandbox with this id is still kept, "+
				"and its client takes no second one of that name; "+
				"delete that workspace or use another id", jobID(job.SandboxID), named[0].workspace.ID)}
	}
	return &scheduler.Failure{
		Reason: fsm.ReasonNoCapacity,
		Detail: fmt.Sprintf("no Nomad client can hold the workspace of a sandbox with the driver %s: %v",
			job.Template.Driver, refusal),
	}
}

// ownership lets the task write its workspace. The user of an image is not known here, so without
// a numeric user in the template any user may write. Nomad closes the directory above to the
// client's other users.
func ownership(t fsm.Template) map[string]string {
	if t.Driver != fsm.DriverDocker {
		return map[string]string{"mode": "0700"}
	}
	uid, gid, _ := strings.Cut(t.User, ":")
	if _, err := strconv.Atoi(uid); err != nil {
		return map[string]string{"mode": "0777"}
	}
	params := map[string]string{"mode": "0700", "uid": uid}
	if _, err := strconv.Atoi(gid); err == nil {
		params["gid"] = gid
	}
	return params
}

// ready waits until the client has announced the volume. Before that no job that mounts it can be
// placed.
func (r *Runner) ready(ctx context.Context, ws workspace) (workspace, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.VolumeTimeout)
	defer cancel()
	for {
		v, err := r.volume(ctx, ws.ID)
		switch {
		case err != nil:
			return ws, err
		case v == nil:
			return ws, fsm.Errorf(fsm.CodeConflict, "the volume %s vanished while it was waited for", ws.Name)
		case v.State == api.HostVolumeStateReady:
			ws.HostPath = v.HostPath
			return ws, nil
		}
		if !pause(ctx, 10*time.Millisecond) {
			return ws, fsm.Errorf(fsm.CodeScheduler,
				"the workspace volume %s on client %s is %s, not ready", ws.Name, ws.NodeID, v.State)
		}
	}
}
