"""How many channels each unit loses so that the total error is smallest and a cost is within its budget.

    minimise over n_u    sum of E_u(n_u)    subject to    cost(n) <= left

The cost need not add up over units: a layer between two units depends on both. `problem` lists the choices of each unit
and the costs that depend on one unit, on two, or on more. Where units are coupled in chains the solution is exact
(`chains`); elsewhere it is found by Lagrange with moves of single units, stars and pairs (`moves`), and units that many
others depend on try their choices with the others solved exactly (`hubs`).
"""
