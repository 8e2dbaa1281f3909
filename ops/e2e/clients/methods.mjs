// Calls each method of the published clients once: node methods.mjs PACKAGES ADDRESS KEY MODEL_URL.
//
// It prints a line of JSON for each: {client, method, status, error}. The status is 200 where the answer
// was what the client reads, the server's status where it refused, and 0 for any other failure. The
// methods are the package's own: one that has no case here fails.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import assert from 'node:assert/strict'
import { cloudCases, conversationCases, sharedCases, skillsCases } from './cases.mjs'

const [packages, address, key, modelURL] = process.argv.slice(2)
const dist = join(packages, 'node_modules/@openhands/typescript-client/dist')
const published = await import(pathToFileURL(join(dist, 'clients.js')))

// methodsOf lists what a client has for its callers: what its types call private is not.
function methodsOf(name) {
  const file = name.replace(/([a-z])([A-Z])/g, '$1-$2').toLowerCase()
  const types = readFileSync(join(dist, 'client', `${file}.d.ts`), 'utf8')
  const hidden = [...types.matchAll(/private (?:readonly )?(\w+)/g)].map((m) => m[1])
  return Object.getOwnPropertyNames(published[name].prototype)
    .filter((m) => m !== 'constructor' && !hidden.includes(m))
}

function report(client, method, status, error = '') {
  console.log(JSON.stringify({ client, method, status, error }))
}

// run calls the cases in their order: what one makes, the next one uses. later are the methods that
// another call of it has.
async function run(name, cases, later = []) {
  const methods = methodsOf(name)
  for (const method of methods.filter((m) => !cases.has(m) && !later.includes(m))) {
    report(name, method, 0, 'no case calls it')
  }
  for (const [method, call] of cases) {
    try {
      assert.ok(methods.includes(method), 'the package has no such method')
      await call()
      report(name, method, 200)
    } catch (error) {
      report(name, method, error.status ?? 0, String(error.message ?? error).slice(0, 400))
    }
  }
}

const world = { published, address, key, modelURL, model: 'openai/scripted' }
const cloud = cloudCases(world)
await run('CloudClient', cloud, [...world.afterwards.keys()])
await run('ConversationClient', conversationCases(world))
await run('SkillsClient', skillsCases(world))
await run('SharedClient', sharedCases(world))
await run('CloudClient', world.afterwards, [...cloud.keys()])
