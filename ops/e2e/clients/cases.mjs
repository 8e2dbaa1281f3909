// The calls of each client, by method, in the order in which they are made.
import { setTimeout as sleep } from 'node:timers/promises'
import assert from 'node:assert/strict'

// becomes repeats a call until what it answers is good.
async function becomes(what, call, good) {
  let last
  for (let i = 0; i < 300; i++) {
    last = await call()
    if (good(last)) return last
    await sleep(200)
  }
  throw new Error(`${what} is still ${JSON.stringify(last)}`)
}

const noAutomation = (call) => async () => {
  await assert.rejects(call, { status: 404 })
}

// cloudCases are the calls of CloudClient to the control plane. It leaves in the world what the other
// clients need: a conversation, and its agent server's address and key.
export function cloudCases(w) {
  const cloud = new w.published.CloudClient({
    host: w.address, apiKey: w.key,
    proxy: { host: w.address, headers: { Authorization: `Bearer ${w.key}` } },
  })
  const profile = { include_secrets: true, llm: { model: 'openai/scripted', api_key: 'sk-p' } }
  const message = { role: 'user', content: [{ type: 'text', text: 'greet' }] }
  let device
  const cases = {
    getOrganizations: async () => {
      const found = await cloud.getOrganizations()
      assert.equal(found.items.length, 1)
      w.org = found.currentOrgId
      assert.equal(found.items[0].id, w.org)
    },
    getCurrentApiKey: async () => assert.ok((await cloud.getCurrentApiKey()).user_id),
    getOrganizationMe: async () => assert.equal((await cloud.getOrganizationMe(w.org)).role, 'owner'),
    saveSettings: async () => {
      await cloud.saveSettings({
        agent_settings_diff: { llm: { model: w.model, api_key: 'sk-a', base_url: w.modelURL } },
        conversation_settings_diff: { max_iterations: 40 },
        app_preferences: { language: 'en' },
      })
    },
    getSettings: async () => assert.equal((await cloud.getSettings()).llm_api_key_set, true),
    getSettingsWithDerivedFields: async () => {
      const found = await cloud.getSettingsWithDerivedFields()
      assert.equal(found.agent_settings.llm.model, w.model)
      assert.equal(found.conversation_settings.max_iterations, 40)
    },
    getSettingsSchema: async () => assert.ok((await cloud.getSettingsSchema()).sections.length > 0),
    getConversationSettingsSchema: async () =>
      assert.ok((await cloud.getConversationSettingsSchema()).sections.length > 0),
    saveProfile: async () => assert.equal((await cloud.saveProfile('one', profile)).name, 'one'),
    renameProfile: async () => assert.equal((await cloud.renameProfile('one', 'other')).name, 'other'),
    getProfile: async () => assert.equal((await cloud.getProfile('other')).api_key_set, true),
    listProfiles: async () =>
      assert.deepEqual((await cloud.listProfiles()).profiles.map((p) => p.name), ['other']),
    createSecret: async () => { await cloud.createSecret('a/b', 'value', 'what') },
    updateSecret: async () => { await cloud.updateSecret('a/b', 'c', 'what else') },
    listSecrets: async () =>
      assert.deepEqual(await cloud.listSecrets(), [{ name: 'c', description: 'what else' }]),
    deleteSecret: async () => {
      await cloud.deleteSecret('c')
      assert.deepEqual(await cloud.listSecrets(), [])
    },
    listSkills: async () => assert.ok(Array.isArray(await cloud.listSkills())),
    searchModels: async () =>
      assert.ok((await cloud.searchModels({ limit: 100 })).items.some((m) => m.name === w.model)),
    searchProviders: async () => assert.ok((await cloud.searchProviders({ query: 'openai' })).items.length > 0),
    getInstallations: async () => { await cloud.getInstallations({ provider: 'github' }) },
    searchRepositories: async () => { await cloud.searchRepositories({ provider: 'github', query: 'a' }) },
    getRepositoryBranches: async () => {
      await cloud.getRepositoryBranches({ provider: 'github', repository: 'owner/repo' })
    },
    getSuggestedTasks: async () => { await cloud.getSuggestedTasks() },
    createConversation: async () => {
      w.task = await cloud.createConversation({ initial_message: message, title: 'A talk' })
      assert.ok(w.task.id)
    },
    getConversationStartTask: async () => {
      const task = await becomes('the start', () => cloud.getConversationStartTask(w.task.id),
        (t) => t.status === 'READY' || t.status === 'ERROR')
      assert.equal(task.status, 'READY', JSON.stringify(task))
      w.id = task.app_conversation_id
      w.sandbox = task.sandbox_id
    },
    getConversations: async () => {
      const [found, none] = await cloud.getConversations([w.id, '0'.repeat(32)])
      assert.equal(none, null)
      w.agent = found.conversation_url.replace(/\/api\/conversations\/.*/, '')
      w.agentKey = found.session_api_key
      await becomes('the run', async () => (await cloud.getConversations([w.id]))[0].execution_status,
        (s) => s === 'finished')
    },
    searchConversations: async () =>
      assert.deepEqual((await cloud.searchConversations(20)).items.map((c) => c.id), [w.id]),
    updateConversationPublicFlag: async () =>
      assert.equal((await cloud.updateConversationPublicFlag(w.id, true)).public, true),
    getSandboxes: async () => assert.equal((await cloud.getSandboxes([w.sandbox]))[0].status, 'RUNNING'),
    readConversationFile: async () =>
      assert.equal(await cloud.readConversationFile(w.id, '/workspace/project/none'), '""'),
    request: async () => {
      const found = await cloud.request({
        hostOverride: w.agent, method: 'GET', path: `/api/conversations/${w.id}/events/search`,
        params: { limit: 5 }, authMode: 'session-api-key', sessionApiKey: w.agentKey,
      })
      assert.equal(found.items.length, 5)
    },
    downloadConversation: async () => {
      const zip = Buffer.from(await (await cloud.downloadConversation(w.id)).arrayBuffer())
      assert.equal(zip.subarray(0, 2).toString(), 'PK')
      assert.ok(zip.includes('meta.json'))
    },
    switchConversationProfile: async () => {
      await cloud.saveProfile('same', {
        include_secrets: true, llm: { model: w.model, api_key: 'sk-b', base_url: w.modelURL },
      })
      await cloud.switchConversationProfile(w.id, 'same')
    },
    switchConversationAcpModel: async () => {
      // The conversation's agent is not one of ACP, which is a 400 upstream too.
      await assert.rejects(cloud.switchConversationAcpModel(w.id, 'm'), { status: 400 })
    },
    activateProfile: async () => assert.equal((await cloud.activateProfile('same')).llm_applied, true),
    deleteProfile: async () => {
      await cloud.deleteProfile('other')
      assert.deepEqual((await cloud.listProfiles()).profiles.map((p) => p.name), ['same'])
    },
    startDeviceFlow: async () => {
      device = await cloud.startDeviceFlow()
      assert.match(device.user_code, /^[A-Z]{4}-[A-Z]{4}$/)
      assert.equal(new URL(device.verification_uri).origin, w.address)
    },
    pollForToken: async () => {
      const confirmed = await fetch(`${w.address}/oauth/device/verify-authenticated`, {
        method: 'POST', body: new URLSearchParams({ user_code: device.user_code }),
        headers: { Authorization: `Bearer ${w.key}` },
      })
      assert.equal(confirmed.status, 200, await confirmed.text())
      const token = await cloud.pollForToken(device.device_code, { interval: 1, timeout: 30_000 })
      const other = new w.published.CloudClient({ host: w.address, apiKey: token.access_token })
      assert.equal((await other.getCurrentApiKey()).user_id, (await cloud.getCurrentApiKey()).user_id)
    },
    listAutomations: noAutomation(() => cloud.listAutomations()),
    getAutomation: noAutomation(() => cloud.getAutomation('a')),
    updateAutomation: noAutomation(() => cloud.updateAutomation('a', {})),
    deleteAutomation: noAutomation(() => cloud.deleteAutomation('a')),
    dispatchAutomation: noAutomation(() => cloud.dispatchAutomation('a')),
    listAutomationRuns: noAutomation(() => cloud.listAutomationRuns('a')),
    downloadAutomationTarball: noAutomation(() => cloud.downloadAutomationTarball('a')),
    getAutomationHealth: noAutomation(() => cloud.getAutomationHealth()),
  }
  w.afterwards = new Map(Object.entries({
    pauseSandbox: async () => {
      await cloud.pauseSandbox(w.sandbox)
      await becomes('the sandbox', async () => (await cloud.getSandboxes([w.sandbox]))[0].status,
        (s) => s === 'PAUSED')
    },
    resumeSandbox: async () => {
      await cloud.resumeSandbox(w.sandbox)
      await becomes('the sandbox', async () => (await cloud.getSandboxes([w.sandbox]))[0].status,
        (s) => s === 'RUNNING')
    },
    deleteConversation: async () => {
      await cloud.deleteConversation(w.id)
      assert.deepEqual(await cloud.getConversations([w.id]), [null])
    },
  }))
  return new Map(Object.entries(cases))
}

// conversationCases are the calls of ConversationClient to the conversation's agent server.
export function conversationCases(w) {
  const agent = new w.published.ConversationClient({ host: w.agent, apiKey: w.agentKey })
  const llm = { model: w.model, api_key: 'sk-c', base_url: w.modelURL, usage_id: 'agent' }
  const finished = (id) => becomes('the run', async () => (await agent.getConversation(id)).execution_status,
    (s) => s !== 'running')
  let own, events, fork
  return new Map(Object.entries({
    getConversation: async () => assert.equal((await agent.getConversation(w.id)).execution_status, 'finished'),
    getConversations: async () => assert.equal((await agent.getConversations([w.id])).length, 1),
    searchConversations: async () => assert.equal((await agent.searchConversations()).items.length, 1),
    countConversations: async () => assert.equal(await agent.countConversations(), 1),
    createConversation: async () => {
      own = (await agent.createConversation({
        workspace: { kind: 'LocalWorkspace', working_dir: (await agent.getConversation(w.id)).workspace.working_dir },
        agent_settings: { agent_kind: 'openhands', llm },
      })).id
      assert.ok(own)
    },
    sendEvent: async () => {
      await agent.sendEvent(own, { role: 'user', content: [{ type: 'text', text: 'greet' }] }, { run: true })
      assert.equal(await finished(own), 'finished')
    },
    searchEvents: async () => {
      events = (await agent.searchEvents(own, { limit: 100, sort_order: 'TIMESTAMP' })).items
      assert.ok(events.some((e) => e.kind === 'MessageEvent' && e.source === 'user'))
    },
    getEvent: async () => assert.equal((await agent.getEvent(own, events[0].id)).id, events[0].id),
    getEvents: async () => {
      const [found, none] = await agent.getEvents(own, [events[0].id, crypto.randomUUID()])
      assert.equal(found.id, events[0].id)
      assert.equal(none, null)
    },
    getEventCount: async () => assert.ok(await agent.getEventCount(own) >= events.length),
    getAgentFinalResponse: async () => assert.match((await agent.getAgentFinalResponse(own)).response, /Hello/),
    askAgent: async () => assert.match((await agent.askAgent(own, 'how are you')).response, /Hello/),
    setConfirmationPolicy: async () =>
      assert.equal((await agent.setConfirmationPolicy(own, { kind: 'AlwaysConfirm' })).success, true),
    setSecurityAnalyzer: async () => assert.equal(
      (await agent.setSecurityAnalyzer(own, { kind: 'LLMSecurityAnalyzer' })).success, true),
    respondToConfirmation: async () => {
      await agent.sendEvent(own, { role: 'user', content: [{ type: 'text', text: 'use a tool' }] }, { run: true })
      assert.equal(await finished(own), 'waiting_for_confirmation')
      assert.equal((await agent.respondToConfirmation(own, { accept: true })).success, true)
      assert.equal(await finished(own), 'finished')
    },
    updateSecrets: async () => assert.equal(
      (await agent.updateSecrets(own, { secrets: { A: { kind: 'StaticSecret', value: 'v' } } })).success, true),
    switchLLM: async () => { await agent.switchLLM(own, llm) },
    switchProfile: async () => { await agent.switchProfile(own, 'same') },
    switchAcpModel: async () => {
      await assert.rejects(agent.switchAcpModel(own, 'm'), { status: 400 })
    },
    condenseConversation: async () => assert.equal((await agent.condenseConversation(own)).success, true),
    pauseConversation: async () => assert.equal((await agent.pauseConversation(own)).success, true),
    interruptConversation: async () => assert.equal((await agent.interruptConversation(own)).success, true),
    runConversation: async () => {
      await agent.sendEvent(own, { role: 'user', content: [{ type: 'text', text: 'greet' }] }, { run: false })
      assert.equal((await agent.runConversation(own)).success, true)
      await finished(own)
    },
    navigateConversation: async () => {
      const to = events.find((e) => e.kind === 'MessageEvent')
      assert.equal((await agent.navigateConversation(own, { event_id: to.id })).leaf_event_id, to.id)
    },
    forkConversation: async () => {
      fork = (await agent.forkConversation(own)).id
      assert.notEqual(fork, own)
    },
    startGoal: async () => {
      assert.equal((await agent.startGoal(own, { objective: 'greet', max_iterations: 100000 })).success, true)
    },
    stopGoal: async () => assert.equal((await agent.stopGoal(own)).success, true),
    resumeGoal: async () => {
      await finished(own) // the run of a goal that was stopped goes on
      assert.equal((await agent.resumeGoal(own)).success, true)
    },
    updateConversation: async () => { await agent.updateConversation(own, { title: 'Another talk' }) },
    deleteConversation: async () => {
      await agent.deleteConversation(fork)
      await assert.rejects(agent.getConversation(fork), { status: 404 })
    },
    close: async () => agent.close(),
  }))
}

// skillsCases are the calls of SkillsClient to the conversation's agent server.
export function skillsCases(w) {
  const skills = new w.published.SkillsClient({ host: w.agent, apiKey: w.agentKey })
  return new Map(Object.entries({
    getSkills: async () => assert.ok(Array.isArray((await skills.getSkills({ load_public: false })).skills)),
    syncSkills: async () => { await skills.syncSkills() },
    installSkill: async () => { await skills.installSkill({ source: 'github:owner/repo' }) },
    listInstalledSkills: async () => assert.deepEqual((await skills.listInstalledSkills()).skills, []),
    getInstalledSkill: async () => { await skills.getInstalledSkill('a') },
    toggleSkill: async () => { await skills.toggleSkill('a', false) },
    refreshSkill: async () => { await skills.refreshSkill('a') },
    uninstallSkill: async () => { await skills.uninstallSkill('a') },
    getMarketplace: async () => { await skills.getMarketplace() },
    close: async () => skills.close(),
  }))
}

// sharedCases are the calls of SharedClient, without a key.
export function sharedCases(w) {
  const shared = new w.published.SharedClient({ host: w.address })
  return new Map(Object.entries({
    getSharedConversations: async () => assert.equal((await shared.getSharedConversations([w.id])).length, 1),
    getSharedConversation: async () => assert.equal((await shared.getSharedConversation(w.id)).id, w.id),
    searchSharedEvents: async () =>
      assert.ok(Array.isArray((await shared.searchSharedEvents({ conversationId: w.id })).items)),
    close: async () => shared.close(),
  }))
}
